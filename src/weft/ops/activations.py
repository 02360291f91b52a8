"""Point-wise non-linearities by name: a closed list.

    identity      x
    relu          max(x, 0)
    squared_relu  max(x, 0)^2                                            So et al. 2021 (Primer), section 4
    gelu          x Phi(x), Phi the normal distribution function         Hendrycks & Gimpel 2016, section 2
    gelu_tanh     x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2        the same, approximated (GPT-1, GPT-2, Gemma)
    silu          x sigmoid(x), also called swish                        Elfwing et al. 2018
    sigmoid       1 / (1 + exp(-x))
    tanh          the hyperbolic tangent

"gelu" is always the exact form; several code bases call the tanh form by that name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError
from torch import Tensor
from torch.nn import functional as F

from weft.core.errors import nearest

ActivationName = Literal["identity", "relu", "squared_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"]


def identity(x: Tensor) -> Tensor:
    """x itself: a gated unit with it is the bilinear layer."""
    return x


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)^2."""
    return F.relu(x).square()


ACTIVATIONS: Mapping[ActivationName, Callable[[Tensor], Tensor]] = MappingProxyType({
    "identity": identity,
    "relu": F.relu,
    "squared_relu": squared_relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
})


def _known(name: Any) -> Any:
    if isinstance(name, str) and name in ACTIVATIONS:
        return name
    raise PydanticCustomError("weft_rule", "{what}", {
        "what": f"no activation is called {name!r}. {nearest(str(name), ACTIVATIONS)}"})


Activation: TypeAlias = Annotated[ActivationName, BeforeValidator(_known)]
"""A configuration field that holds an activation's name; an unknown one is refused with the nearest known."""
