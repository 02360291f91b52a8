"""The n-gram as a language model: counted, smoothed, used through the same interface as every other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from pydantic import Field, model_validator
from torch import Tensor, nn

from weft.core.config import rule
from weft.core.declarations import Declared, Trait
from weft.core.errors import CheckpointError
from weft.core.model import Counted, ModelConfig, Readout, Resizable
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Span
from weft.linear.rewrite import rewritten
from weft.models.fixed_context import FixedContextModel
from weft.ngram import (
    NgramCounts,
    NgramTable,
    TableLevel,
    add_k,
    count_ngrams,
    katz,
    maximum_likelihood,
    modified_kneser_ney,
)

MOST_ORDER = 100
"""Of an n-gram: each order has tables of its own, and takes a pass over the text. Published ones have 3 to 7."""
ESTIMATORS: Mapping[str, Callable[[NgramCounts], NgramTable]] = {
    "maximum_likelihood": maximum_likelihood, "katz": katz, "kneser_ney": modified_kneser_ney}
"""Estimators without a setting; add-k has one."""


@register
class NgramConfig(ModelConfig):
    """p(w | last n-1 tokens) from counts, smoothed.

    Attributes:
        order: n, at most 100.
        smoothing: the estimator of probabilities. ``maximum_likelihood`` does not smooth: an unseen n-gram has
            probability 0, and a text that contains one has infinite perplexity.
        k: added to every count by ``add_k``; None: 1 (Laplace).
        end: the token between documents, if the text has one. As a document's first token it is read as the start
            symbol, and is counted as the end of the document before, not as a first word.
    """

    kind: ClassVar[str] = "ngram"
    about = About(
        source=("Jurafsky and Martin, 3rd ed., chapter 3; Katz 1987; Chen and Goodman 1998 (add-k: section 2.1, "
                "modified Kneser-Ney: section 3)"),
        equation=r"p(w \mid u) = \frac{\max(c(u w) - D, 0)}{c(u)} + \lambda(u)\, p(w \mid u')",
        differs=(("feedforward", "counts in place of learning, in one pass and without gradients."),),
        state_size="(order - 1) ids")

    order: int = Field(default=5, gt=0, le=MOST_ORDER)
    smoothing: Literal["maximum_likelihood", "add_k", "katz", "kneser_ney"] = "kneser_ney"
    k: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    end: int | None = Field(default=None, ge=0)

    def in_words(self, d_model: int = 0) -> str:
        how = {"maximum_likelihood": "not smoothed", "add_k": f"add-{1.0 if self.k is None else self.k:g}",
               "katz": "Katz back-off", "kneser_ney": "modified Kneser-Ney"}[self.smoothing]
        return f"{self.order}-gram, {how}"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.k is not None and self.smoothing != "add_k":
            raise rule("k", f"{self.k:g} with smoothing {self.smoothing!r}, which adds nothing to the counts.",
                       "Leave it out, or choose smoothing: add_k.")
        if self.end is not None and self.end >= self.vocab_size:
            raise rule("end", f"{self.end} is no id of a vocabulary of {self.vocab_size}.",
                       f"Give one from 0 to {self.vocab_size - 1}, or leave it out.")
        return self

    def build(self, dims: Dims | None = None) -> NgramModel:
        return rewritten(NgramModel(self), self.rewrites)

    @classmethod
    def examples(cls) -> list[Self]:
        size = {"vocab_size": 11, "context": 32}
        return [cls.model_validate(size | options) for options in (
            {"order": 1, "smoothing": "maximum_likelihood"}, {"order": 3, "smoothing": "maximum_likelihood", "end": 4},
            {"order": 2, "smoothing": "add_k", "k": 0.5}, {"order": 4, "smoothing": "katz"}, {"order": 3})]


class NgramModel(FixedContextModel, Counted, Resizable):
    """An n-gram model. Before `fit` all tokens are equally likely.

    ``hidden`` returns the ids of each context, int64 [B,T,n-1], oldest first, with the start symbol V before a
    document's first token. States, spans and ids may be on any device; the tables stay on the CPU.
    """

    readout: NgramReadout

    def __init__(self, config: NgramConfig) -> None:
        super().__init__(config, config.order - 1)
        self.smoothing, self.k, self.end = config.smoothing, config.k, config.end
        self.readout = NgramReadout(config.order, config.vocab_size)

    def declares(self) -> Declared:
        return replace(super().declares(), traits=frozenset({Trait.NOT_DIFFERENTIABLE, Trait.TOKENS_ONLY}))

    def fit(self, tokens: Int64[Tensor, " N"], begins: Bool[Tensor, " N"] | None = None) -> None:
        """Count ``tokens`` and smooth, replacing the table.

        Args:
            tokens: ids of all documents, concatenated.
            begins: True where a document begins; None: one document.

        Raises:
            InputError: there are no tokens, ids are outside the vocabulary, or ``begins`` is of another length.
        """
        ids = tokens.numpy(force=True)
        marks = None if begins is None else begins.numpy(force=True)
        if self.end is not None:
            ids, marks = _close_documents(ids, marks, self.end)
        counts = count_ngrams(ids, marks, order=self.reach + 1, vocab_size=self.vocab_size)
        if self.smoothing == "add_k":
            self.readout.hold(add_k(counts, 1.0 if self.k is None else self.k))
        else:
            self.readout.hold(ESTIMATORS[self.smoothing](counts))

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.readout.prepare({name.removeprefix("readout."): shape for name, shape in shapes.items()})

    def read(self, tokens: Int64[Tensor, "B T"], span: Span) -> Int64[Tensor, "B T"]:
        if self.end is None:
            return tokens
        return torch.where(span.ticks.starts() & (tokens == self.end), self.start_id, tokens)

    def represent(self, contexts: Int64[Tensor, "B T P"]) -> Int64[Tensor, "B T P"]:
        return contexts


class NgramReadout(Readout):
    """The table of an n-gram model, in buffers, so that checkpoints contain it: for each length k = 1 .. n the sorted
    ``keys_k`` of the n-grams listed (k > 1), ``log_prob_k``, and ``backoff_k`` (k < n), see `NgramTable`.

    Casts and moves of the model do not apply to the table, which stays in float64 on the CPU; results are float64 on
    the device of the input, without a gradient. ``logits`` are normalised log-probabilities, -inf for tokens of
    probability 0.
    """

    def __init__(self, order: int, vocab_size: int) -> None:
        super().__init__()
        self.order, self.vocab_size = order, vocab_size
        self.hold(_uniform(order, vocab_size))
        self.register_load_state_dict_pre_hook(_prepare_for)  # type: ignore[no-untyped-call]

    def logits(self, h: Int64[Tensor, "B T P"]) -> Float64[Tensor, "B T V"]:
        log_probs = self.table().log_distribution(h.flatten(0, 1).numpy(force=True))
        return torch.from_numpy(log_probs).view(*h.shape[:2], self.vocab_size).to(h.device)

    def log_prob(self, h: Int64[Tensor, "B T P"], targets: Int64[Tensor, "B T"]) -> Float64[Tensor, "B T"]:
        log_probs = self.table().log_prob(h.flatten(0, 1).numpy(force=True), targets.flatten().numpy(force=True))
        return torch.from_numpy(log_probs).view(targets.shape).to(h.device)

    def table(self) -> NgramTable:
        """The table, sharing memory with the buffers."""
        size = self.vocab_size
        arrays = {name: tensor.numpy() for name, tensor in self.named_buffers()}
        levels = [TableLevel(arrays.get(f"keys_{k}", np.arange(size + 1)), arrays[f"log_prob_{k}"],
                             arrays.get(f"backoff_{k}", np.empty(0))) for k in range(1, self.order + 1)]
        return NgramTable(self.order, size, size, tuple(levels))

    def hold(self, table: NgramTable) -> None:
        """Copy a table into the buffers."""
        for k, level in enumerate(table.levels, start=1):
            self._hold(f"log_prob_{k}", level.log_prob)
            if k > 1:
                self._hold(f"keys_{k}", level.keys)
            if k < table.order:
                self._hold(f"backoff_{k}", level.backoff)

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Give the buffers the sizes of a checkpoint. Those that it lacks do not change; the loader reports them.
        Raises `CheckpointError`: sizes that cannot belong to one table."""
        stored = {name: shapes[name] for name, _ in self.named_buffers() if name in shapes}
        for name, shape in stored.items():
            length = name.rpartition("_")[2]
            expected = (self.vocab_size + 1,) if length == "1" else stored.get(f"keys_{length}", shape)
            if len(shape) != 1 or shape != expected:
                raise CheckpointError(f"shape {list(shape)} where {list(expected[:1])} belongs.", where=name,
                                      remedy="The checkpoint is of another vocabulary or damaged; fit the model again.")
        for name, shape in stored.items():
            if self.get_buffer(name).shape != shape:
                self._hold(name, np.zeros(shape, dtype=np.int64 if name.startswith("keys") else np.float64))

    def _hold(self, name: str, array: np.ndarray) -> None:
        self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(array)))

    def declares(self) -> Declared:
        return replace(super().declares(), same_dtype=tuple(self.buffers(recurse=False)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Ignore moves and casts, as the class describes."""
        return self


def _prepare_for(module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_: object) -> None:
    """A hook before `load_state_dict`, so that a fitted table can be loaded into one of another size."""
    assert isinstance(module, NgramReadout)
    module.prepare({name.removeprefix(prefix): tuple(tensor.shape) for name, tensor in state_dict.items()
                    if name.startswith(prefix)})


def _uniform(order: int, vocab_size: int) -> NgramTable:
    """A table in which all tokens are equally likely and no n-gram is listed."""
    symbols = np.arange(vocab_size + 1)
    equal = np.where(symbols < vocab_size, -np.log(vocab_size), -np.inf)
    nothing = np.empty(0)
    levels = [TableLevel(symbols, equal, np.zeros(vocab_size + 1) if order > 1 else nothing)]
    levels += [TableLevel(np.empty(0, dtype=np.int64), nothing, nothing) for _ in range(order - 1)]
    return NgramTable(order, vocab_size, vocab_size, tuple(levels))


def _close_documents(ids: np.ndarray, begins: np.ndarray | None, end: int) -> tuple[np.ndarray, np.ndarray]:
    """``E d1 E d2 E``, documents beginning at each E, as the documents ``d1 E`` and ``d2 E``."""
    first = np.arange(len(ids)) == 0 if begins is None else begins | (np.arange(len(ids)) == 0)
    opens = first & (ids == end)
    after = np.concatenate([[False], opens[:-1]]) if len(ids) else opens
    leading = int(len(ids) > 0 and opens[0])
    return ids[leading:], ((first & ~opens) | after)[leading:]
