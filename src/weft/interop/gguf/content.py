"""The content of a GGUF file: keys and tensors, computed from the model alone, to be written and to be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from weft.checkpoints.tensors import own_tensors
from weft.core.model import LanguageModel
from weft.families.template import N_LAYERS
from weft.families.weights import TensorMap, account
from weft.interop.gguf.architectures import FILE_TYPES, GgufFit
from weft.interop.gguf.naming import Value, kv_heads
from weft.interop.gguf.rotary_keys import rotary_metadata, rotary_tensors

QUANTIZATION_VERSION = 2
EMBEDDING, READOUT = "token_embd.weight", "output.weight"
WHOLE = ("position_embd.weight", "ffn_gate_inp.weight")
"""Suffixes of matrices that llama.cpp expects in float32 in every file."""


@dataclass(frozen=True, eq=False)
class Content:
    """The keys and tensors of a file.

    Attributes:
        architecture: llama.cpp's name of it, which is a key as well.
        keys: all others, by name.
        account: the correspondence between tensors of the file and of the model.
        extra: tensors that the model does not have: factors of rotary pairs.
        copies_embedding: whether the file has the embedding a second time, as the readout's matrix.
    """

    architecture: str
    keys: Mapping[str, Value]
    account: TensorMap
    extra: Mapping[str, Tensor]
    model: LanguageModel
    copies_embedding: bool

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors, in the order of the file."""
        copied = {READOUT: self.account.shapes[EMBEDDING]} if self.copies_embedding else {}
        return {**{name: tuple(tensor.shape) for name, tensor in self.extra.items()}, **self.account.shapes, **copied}

    def dtype(self, name: str) -> torch.dtype:
        """The dtype in the file: float32 for vectors and some matrices, the model's for all others."""
        whole = len(self.shapes[name]) < 2 or name.endswith(WHOLE)
        return torch.float32 if whole else next(self.model.parameters()).dtype

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors, in the order of the file, one rule's at a time."""
        own = own_tensors(self.model)
        yield from self.extra.items()
        for rule in self.account.rules:
            with torch.no_grad():
                written = rule.write([own[name].detach() for name in rule.ours])
            for name, tensor in zip(rule.theirs, written, strict=True):
                yield name, tensor.cpu().to(self.dtype(name)).contiguous()
        if self.copies_embedding:
            yield READOUT, own["embedding.tokens.weight"].detach().cpu().contiguous()


def content_of(fitted: GgufFit, model: LanguageModel, vocabulary: Mapping[str, Value], name: str) -> Content:
    """The content of a model's file.

    Args:
        name: a name for the model.
    """
    architecture, facts = fitted.architecture, fitted.facts
    extra = rotary_tensors(facts) if architecture.rope else {}
    general: dict[str, Value] = {
        "general.type": "model", "general.name": name, "general.quantization_version": QUANTIZATION_VERSION,
        "general.file_type": FILE_TYPES[next(model.parameters()).dtype]}
    return Content(architecture.name, {**general, **_metadata(fitted), **vocabulary},
                   account(architecture.weights(facts), own_tensors(model)), extra, model,
                   architecture.copies_embedding(facts))


def _metadata(fitted: GgufFit) -> dict[str, Value]:
    facts, architecture = fitted.facts, fitted.architecture
    epsilon = {"rms": "attention.layer_norm_rms_epsilon", "layer": "attention.layer_norm_epsilon"}[architecture.norm]
    found: dict[str, Value] = {
        "vocab_size": facts["vocab_size"], "context_length": facts["context"], "embedding_length": facts["d_model"],
        "block_count": facts[N_LAYERS], "feed_forward_length": facts["d_ff"],
        "attention.head_count": facts["n_heads"], "attention.head_count_kv": kv_heads(facts), epsilon: facts["eps"],
        **(rotary_metadata(facts) if architecture.rope else {}), **architecture.metadata(facts)}
    return {f"{architecture.name}.{key}": value for key, value in found.items()}
