"""The models of `recurrent.py`: for each mixer a small language model, the forms it is trained with, and its peers.

A mixer more is an entry of `SUBJECTS`; a peer is a function from the sizes to a module that maps tokens to logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weft.training import RunConfig, parse_run

RATE, CLIP = 1e-3, 1.0
"""Of every contender."""


class Sizes(NamedTuple):
    """Of a model and of a training step."""

    width: int = 384
    layers: int = 9
    vocabulary: int = 4096
    rows: int = 4
    steps: int = 512


Builder = Callable[[Sizes], nn.Module]


@dataclass(frozen=True)
class Subject:
    """A mixer with what it is compared with.

    Attributes:
        layers: the parts of one block.
        depth: blocks, as a share of `Sizes.layers`, so that models of all subjects have some ten million parameters.
        forms: by name, the forms of operations that Weft's model is trained with; {}: those that it chooses.
        peers: by name, other implementations that are trained beside it.
        foreign: a model of `transformers` whose folder Weft reads too, for decoding; None: there is none.
        wanted: by contender, at least so many times the tokens/s of the first peer; ``decoding``: of `transformers`.
    """

    layers: tuple[Mapping[str, Any], ...]
    depth: float = 1.0
    forms: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {"weft": {}})
    peers: Mapping[str, Builder] = field(default_factory=dict)
    foreign: Builder | None = None
    wanted: Mapping[str, float] = field(default_factory=dict)

    def run(self, sizes: Sizes, kernels: Mapping[str, str], steps: int) -> RunConfig:
        """The run that a user would write for Weft's model, with the library of products that is measured to be the
        fastest."""
        block = {"kind": "pre", "norm": "rmsnorm", "layers": [dict(layer) for layer in self.layers]}
        model = {"kind": "decoder", "vocab_size": sizes.vocabulary, "context": sizes.steps, "d_model": sizes.width,
                 "norm": "rmsnorm", "readout": {"kind": "linear", "tied": True},
                 "blocks": [{"repeat": max(1, round(self.depth * sizes.layers)), "of": [block]}]}
        return parse_run({"model": model, "kernels": dict(kernels), "training": {
            "steps": steps, "batch_size": sizes.rows, "optimizer": {"kind": "adamw", "lr": RATE},
            "schedule": {"kind": "constant", "warmup": 0.0}, "clip_norm": CLIP, "compute": {"matmul": "auto"}}})


class MambaPy(nn.Module):
    """The layers of `mambapy` with its parallel scan, between embeddings and the readout tied to them: its own language
    model needs CUDA."""

    def __init__(self, sizes: Sizes) -> None:
        from mambapy.mamba import Mamba, MambaConfig, RMSNorm

        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.layers = Mamba(MambaConfig(d_model=sizes.width, n_layers=sizes.layers))
        self.norm = RMSNorm(sizes.width)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.norm(self.layers(self.tokens(tokens))), self.tokens.weight)


def transformers_mamba(sizes: Sizes) -> nn.Module:
    """`MambaForCausalLM`, which computes on a processor token by token."""
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    model: nn.Module = MambaForCausalLM(MambaConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.width, num_hidden_layers=sizes.layers, initializer_range=0.02))
    return model


GLU = {"kind": "glu"}
SUBJECTS: Mapping[str, Subject] = {
    "mamba": Subject(({"kind": "mamba"},), forms={"weft": {}, "weft without C": {"selective_scan": "operator"}},
                     peers={"mambapy": MambaPy}, foreign=transformers_mamba,
                     wanted={"weft": 12.0, "weft without C": 2.0, "decoding": 3.0}),
    "attention": Subject(({"kind": "attention", "n_heads": 8, "position": {"kind": "rope", "layout": "half_split"}},
                          GLU), depth=0.55),
    "gated_linear_attention": Subject(({"kind": "gated_linear_attention"}, GLU), depth=0.55),
    "lstm": Subject(({"kind": "lstm"},), depth=0.8),
    "retention": Subject(({"kind": "retention"}, GLU), depth=0.45),
    "s4d": Subject(({"kind": "s4d"}, GLU), depth=0.7),
}


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits [B,T,V], of a model of Weft, of `transformers` or of this file."""
    found = model(tokens)
    logits: Tensor = found if isinstance(found, Tensor) else found[0]
    return logits
