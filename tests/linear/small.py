"""Small models whose maps are rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.core.config import parse_part
from weft.core.model import LanguageModel
from weft.linear.low_rank import Adapted

VOCAB = 11
TOKENS = torch.randint(VOCAB, (2, 7), generator=torch.Generator().manual_seed(0))
EXACT = {"rtol": 1e-10, "atol": 1e-10}
"""float64, whose products may be summed in another order, through a few layers."""
MOE = {"kind": "moe", "n_experts": 3, "expert": {"kind": "glu", "d_ff": 6}}
LAYERS = ({"kind": "attention", "n_heads": 2, "position": "rope"}, {"kind": "glu", "d_ff": 12}, MOE, "s4d", "lstm",
          "channel_mix")


def described(rewrites: Sequence[Any], layers: Sequence[Any] = LAYERS, **options: Any) -> dict[str, Any]:
    """The configuration of a decoder, as plain data."""
    return {"kind": "decoder", "vocab_size": VOCAB, "d_model": 8, "context": 32, "norm": "rmsnorm",
            "embedding": {"std": 1.0}, "rewrites": list(rewrites), **options,
            "blocks": [{"kind": "pre", "layers": list(layers), "norm": "rmsnorm"}]}


def model(rewrites: Sequence[Any], layers: Sequence[Any] = LAYERS, *, seed: int = 0, **options: Any) -> Any:
    """That decoder in float64, built from a seed; A and B of every adapted map are random."""
    torch.manual_seed(seed)
    found = parse_part(("model",), described(rewrites, layers, **options)).build(None).double()
    assert isinstance(found, LanguageModel)
    return stirred(found)


@torch.no_grad()
def stirred(found: Any) -> Any:
    """With a B that is not zero, so that an adapted map is not its base."""
    generator = torch.Generator().manual_seed(1)
    for module in found.modules():
        if isinstance(module, Adapted):
            module.perturb(generator)
    return found


def by_hand(adapted: nn.Module, plain: nn.Module, scale: float) -> dict[str, Tensor]:
    """Give ``plain`` the weights of ``adapted``, with W + s B A written out; A and B by the name of W in ``plain``."""
    tensors, low = dict(adapted.named_parameters(remove_duplicate=False)), {}
    with torch.no_grad():
        for name, place in plain.named_parameters():
            path, end = name.rsplit(".", 1)
            opened = f"{path}.map.base.{end}", f"{path}.map.{end}", f"{path}.{end.removesuffix('_weight')}.base.weight"
            base = next((each for each in (f"{path}.base.{end}", *opened) if each in tensors), name)
            place.copy_(tensors[base].view(place.shape))
            a, b = (tensors.get(f"{base.rsplit('.base.', 1)[0]}.{each}.weight") for each in "ab")
            if end.endswith("weight") and ".base." in base and a is not None and b is not None:
                place += scale * torch.einsum("or,ri->oi", b, a).view(place.shape)
                low[name] = a, b
    return low
