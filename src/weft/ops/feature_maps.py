"""Feature maps of linear attention: phi(q).phi(k) in place of exp(q.k).

    elu           elu(x) + 1, positive                                       Katharopoulos et al. 2020, equation 7
    relu          max(x, 0) + 10^-3                                          Choromanski et al. 2021, section 4 (ReLU)
    identity      x: linearised attention without a feature map              Schmidhuber 1992; Schlag et al. 2021, eq. 5

the deterministic parameter-free projection (DPFP; Schlag et al. 2021, section 5.3) to 2 nu E features, mostly 0,

    phi(x)_{i,j} = r_j r_{j-i},  r = relu([x, -x]),  i = 1, ..., nu,  j - i counted round in a circle

and positive random features (FAVOR+; Choromanski et al. 2021, equation 5),

    phi(x) = exp(W x - |x|^2 / 2) / sqrt(m),     E[phi(q).phi(k)] = exp(q.k)        rows of W from N(0, I)

of which this file gives the exponents, since the factors that keep their exponentials in range differ between uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

FeatureMap = Literal["elu", "relu", "identity"]
FLOOR = 1e-3
"""Added to max(x, 0), so that the features of two vectors are never orthogonal and no normaliser is 0."""


def elu_plus_one(x: Tensor) -> Tensor:
    """x + 1 above 0 and exp(x) below, which elu(x) + 1 would round to 0 from -17 on in float32."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def floored_relu(x: Tensor) -> Tensor:
    """max(x, 0) and a floor."""
    return F.relu(x) + FLOOR


def unchanged(x: Tensor) -> Tensor:
    """x."""
    return x


def deterministic_projection(x: Float[Tensor, "... E"], nu: int) -> Float[Tensor, "... M"]:
    """DPFP, M = 2 nu E non-negative features."""
    r = torch.cat([F.relu(x), F.relu(-x)], -1)
    return torch.cat([r * r.roll(shift, -1) for shift in range(1, nu + 1)], -1)


FEATURE_MAPS: Mapping[FeatureMap, Callable[[Tensor], Tensor]] = MappingProxyType({
    "elu": elu_plus_one, "relu": floored_relu, "identity": unchanged})


def exponents(x: Float[Tensor, "B T H E"], directions: Float[Tensor, "M E"]) -> Float[Tensor, "B T H M"]:
    """W x - |x|^2 / 2 of vectors that were scaled by E^(-1/4), so that features approximate exp(q.k / sqrt(E))."""
    x = x * x.shape[-1] ** -0.25
    return x @ directions.t() - x.square().sum(-1, keepdim=True) / 2


def random_directions(count: int, size: int, generator: torch.Generator | None, *,
                      orthogonal: bool) -> Float[Tensor, "M E"]:
    """Rows from N(0, I), in float32: independent, or orthogonal within every block of E of them, which lowers the
    variance (Choromanski et al. 2021, section 3.2 and theorem 2). Each row alone is Gaussian either way.

    Args:
        count: M.
        size: E.
        generator: of random numbers on the CPU; None: torch's own.
        orthogonal: see above.
    """
    if not orthogonal:
        return torch.randn(count, size, generator=generator)
    shape = math.ceil(count / size), size, size
    q, r = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64))
    rows = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # without the signs not all directions are as likely
    lengths = torch.randn(shape, generator=generator, dtype=torch.float64).norm(dim=2, keepdim=True)
    scaled: Tensor = rows.mT * lengths
    return scaled.flatten(0, 1)[:count].float()


def running_maximum(x: Float[Tensor, "B T K"], starts: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T K"]:
    """The largest number up to each token, in its own document where documents begin inside the rows."""
    if starts is None:
        return x.cummax(1).values
    begun = starts.cumsum(1)[..., None]
    reach = 1
    while reach < x.shape[1]:  # after each round a token knows of twice as many tokens before it
        earlier = torch.where(begun[:, reach:] == begun[:, :-reach], x[:, :-reach], x[:, reach:])
        x = torch.cat([x[:, :reach], torch.maximum(x[:, reach:], earlier)], 1)
        reach *= 2
    return x
