"""The task of bidirectional models: predict hidden tokens of running text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

import numpy as np
import torch
from jaxtyping import Int64
from pydantic import Field, model_validator

from weft.core.config import rule
from weft.core.errors import ConfigError, DataError
from weft.core.model import EncoderInputs, LanguageModel, Model, ModelState, Readout
from weft.core.part_config import About
from weft.core.registry import register
from weft.data import Batch, Repeated, TokenStream
from weft.data.batches import MadeOfText
from weft.data.joining import parted
from weft.data.masking import Masked, Masking, word_starts
from weft.data.settings import DataSettings
from weft.evaluation.measuring import evaluating, finite, in_batches, spread
from weft.tasks.base import BatchSums, Count, Rows, Task, TaskConfig, TaskDeclared, TaskSettings, on_device
from weft.tasks.objective import cross_entropy
from weft.tasks.protocols import AddsIds
from weft.tasks.text import TextColumns, sourced_rows, span_of, text_batches
from weft.tasks.token_streams import HeldOut, Material, held_out_text, text_material
from weft.tasks.validation import Validation, by_source, part_measured
from weft.tokenizers import Tokenizer
from weft.tokenizers.base import NamesPieces
from weft.tokenizers.config import TokenizerConfig, WordPieceTokenizerConfig

MASKS = ("[MASK]", "<mask>")
"""Names of the mask token in vocabularies."""

HELD_OUT_SEED = 20_181_011
"""Seed by which every run hides the same tokens of a held-out text, so that results can be compared."""


@register
class MaskedConfig(TaskConfig, AddsIds):
    """Predict hidden tokens of running text from those on both sides, by a model with a head that predicts tokens.

    Attributes:
        rate: share of the tokens that are to be predicted.
        masked: share of these that the mask replaces.
        random: share of these that another token replaces; the rest is unchanged.
        whole_words: choose all tokens of a word or none; only with a tokenizer that marks the tokens that continue a
            word (WordPiece).
    """

    kind: ClassVar[str] = "masked"
    about = About(
        also_called=("mlm", "masked_lm", "masked_language_modeling", "fill_mask", "cloze"),
        source="Devlin et al. 2019, section 3.1, task 1; Liu et al. 2019, section 4.1 (anew each epoch)",
        equation=r"L = -\frac{1}{|M|} \sum_{t \in M} \log p(x_t \mid x_{\setminus M})",
        differs=(("next_token", "hidden tokens are predicted from both sides, so most tokens of a row do not count."),
                 ("span_corruption", "each hidden token keeps its place, and is predicted by itself.")),
        pictured=(("the", ""), ("[MASK]", "cat"), ("sat", ""), ("on", ""), ("[MASK]", "the"), ("mat", "")))

    rate: float = Field(default=0.15, gt=0, lt=1)
    masked: float = Field(default=0.8, ge=0, le=1)
    random: float = Field(default=0.1, ge=0, le=1)
    whole_words: bool = False

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.masked + self.random > 1:
            raise rule("random", f"{self.random:g} beside {self.masked:g} that are masked is more than all.",
                       "Lower one of them.")
        return self

    def declares(self) -> TaskDeclared:
        return TaskDeclared(packs=True, smooths=True, cuts=True, mixes=True)

    def create(self, settings: TaskSettings) -> MaskedTokens:
        return MaskedTokens(self, settings)

    def extra_ids(self, tokenizer: TokenizerConfig) -> int:
        held = tokenizer.from_file()
        known = isinstance(tokenizer, WordPieceTokenizerConfig) if held is None else mask_of(held) < held.vocab_size
        return 0 if known else 1

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(rate=0.4, masked=1.0, random=0.0, whole_words=True)]


def mask_of(tokenizer: Tokenizer) -> int:
    """The id of the mask: that of the vocabulary's mask token, or else the first id after the vocabulary."""
    return next((tokenizer.special_tokens[name] for name in MASKS if name in tokenizer.special_tokens),
                tokenizer.vocab_size)


def continuing_ids(tokenizer: Tokenizer) -> frozenset[int] | None:
    """The ids that continue a word; None for a vocabulary that does not mark them."""
    return tokenizer.continuing_ids if isinstance(tokenizer, NamesPieces) else None


@dataclass(frozen=True, eq=False)
class MaskableText:
    """A stream, and its tokenizer, whose special tokens are never hidden."""

    stream: TokenStream
    tokenizer: Tokenizer

    @property
    def repeated(self) -> Repeated | None:
        """See `weft.tasks.base.Examples`."""
        return self.stream.repeated

    def __len__(self) -> int:
        return len(self.stream)

    def masking(self, config: MaskedConfig, seed: int) -> Masking:
        """The choice of hidden tokens, by the task's configuration."""
        tokenizer, mask = self.tokenizer, mask_of(self.tokenizer)
        special = {mask, *tokenizer.special_tokens.values(),
                   *(place for place in (tokenizer.bos_id, tokenizer.eos_id) if place is not None)}
        ordinary = np.setdiff1d(np.arange(tokenizer.vocab_size), list(special))
        continuing = np.array(sorted(continuing_ids(tokenizer) or ()), dtype=np.int64) if config.whole_words else None
        return Masking(mask, ordinary, np.array(sorted(special)), config.rate, config.masked, config.random, seed,
                       continuing)


def hidden_in(text: Batch, stream: TokenStream, masking: Masking) -> Masked:
    """Rows of a stream with tokens hidden."""
    assert text.places is not None and text.epoch is not None, "batches of a stream have places and epochs"
    countable = stream.flagged(text.places)
    if text.count is not None:
        countable &= np.arange(text.inputs.shape[1]) < text.count[:, None]
    words = None if masking.continuing is None else word_starts(stream, text.places, masking.continuing)
    return masking.hide(text.inputs, text.places, text.epoch, countable, words)


def masked_rows(text: Batch, stream: TokenStream, masking: Masking) -> Rows[TextColumns]:
    """Rows of a stream with tokens hidden, of which the original ids are to be predicted."""
    found = hidden_in(text, stream, masking)
    inputs, originals, chosen = map(torch.from_numpy, (found.inputs, text.inputs, found.chosen))
    columns = TextColumns(inputs, originals, chosen, span_of(text))
    # No bytes: the loss of hidden tokens divided by their bytes is not comparable to bits per byte of a text.
    return Rows(columns, Count(len(text.inputs), int(found.chosen.sum()), sources=sourced_rows(text, found.chosen)))


class MaskedTokens(Task[MaskedConfig, MaskableText, TextColumns]):
    """Rows of a stream with hidden tokens, whose summed negative log-likelihood is the loss.

    It measures that loss per hidden token, and the share of hidden tokens that the model ranks first, on a fixed choice
    of tokens of the held-out text.
    """

    def problems(self, model: Model) -> list[str]:
        kind = model.config.kind
        if isinstance(model, LanguageModel):
            return [f"task: {self.name!r}, and a model of kind {kind!r} predicts each token from those before it "
                    "alone. Give an encoder, or task: next_token."]
        if "tokens" not in model.reads():
            return [f"model: a model of kind {kind!r} reads no tokens. Give an encoder of tokens."]
        if not isinstance(model.head, Readout):
            has = "no head" if model.head is None else "a head that predicts no tokens"
            return [f"model.head: the model has {has}. Give head: masked_token."]
        return super().problems(model)

    def material(self, data: DataSettings, tokenizer: TokenizerConfig) -> Material[MaskableText]:
        self._require_words(tokenizer)
        found = text_material(data, tokenizer)
        return Material(found.corpus, found.corpus_sha256, found.tokenizer, MaskableText(found.train, found.tokenizer),
                        MaskableText(found.validation, found.tokenizer))

    def _require_words(self, tokenizer: TokenizerConfig) -> None:
        """Refuse whole words with a tokenizer that does not mark them, before any text is read."""
        held = tokenizer.from_file()
        marks = isinstance(tokenizer, WordPieceTokenizerConfig) if held is None else continuing_ids(held) is not None
        if self.config.whole_words and not marks:
            raise ConfigError([f"task.whole_words: a tokenizer of kind {tokenizer.kind!r} that does not mark which "
                               "tokens continue a word. Give tokenizer: wordpiece, or leave whole_words out."])

    def held_out(self, data: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> MaskableText:
        return MaskableText(held_out_text(data, tokenizer, part), tokenizer)

    def batches(self, examples: MaskableText) -> MadeOfText[Rows[TextColumns]]:
        masking = examples.masking(self.config, self.settings.seed)
        return MadeOfText(text_batches(self.settings, examples.stream),
                          partial(masked_rows, stream=examples.stream, masking=masking))

    def loss(self, model: Model, columns: TextColumns, state: ModelState | None) -> BatchSums:
        assert isinstance(model.head, Readout), "a model that does not fit is refused before"
        out = model.vectors(EncoderInputs(tokens=columns.inputs), columns.span)
        found = cross_entropy(model.head, out.y, columns.targets, columns.scored, self.settings.objective)
        return BatchSums(found.nats, found.loss, None, out.losses, found.by_row)

    def measure(self, model: Model, examples: MaskableText, batches: int | None = None) -> Validation:
        """Measure windows of the context that do not overlap, each once; documents do not attend to one another."""
        assert isinstance(model.head, Readout), "a model that does not fit is refused before"
        stream = examples.stream
        if stream.sources is not None:
            each = {name: MaskableText(own, examples.tokenizer) for name, own in parted(stream).items()}
            return by_source(stream.sources, each, partial(self.measure, model), batches)
        masking = examples.masking(self.config, HELD_OUT_SEED)
        starts_of = np.arange(0, len(examples), self.settings.context, dtype=np.int64)
        windows = [starts_of[rows] for rows in in_batches(len(starts_of), self.settings.rows)]
        nats, first, tokens, size = 0.0, 0, 0, 0
        with evaluating(model) as device:
            for starts in spread(windows, batches):
                text = _rows(stream, starts, self.settings.context)
                inputs, originals, chosen, span = on_device(masked_rows(text, stream, masking).columns, device)
                h = model.vectors(EncoderInputs(tokens=inputs), span).y[chosen][None]
                targets = originals[chosen][None]
                assert text.places is not None, "rows of a stream have places"
                size += int(stream.byte_lengths[text.places[chosen.cpu().numpy()]].astype(np.int64).sum())
                if targets.numel():
                    nats -= finite(model.head.log_prob(h, targets).double().sum(), stream.corpus)
                    first += int((model.head.logits(h).argmax(-1) == targets).sum())
                tokens += targets.numel()
        if not tokens:
            raise DataError(f"none of the {len(examples)} held-out tokens is hidden, so there is nothing to measure.",
                            where=stream.corpus, remedy="Give more text to hold out.")
        units = "words" if self.config.whole_words else "tokens"
        protocol = (f"{self.config.rate:.0%} of the {units} hidden, the same in every run; windows of "
                    f"{self.settings.context} tokens, each read once, documents fenced"
                    f"{part_measured(batches, len(windows))}")
        return Validation(None, nats / tokens, tokens, size, protocol, {"accuracy": first / tokens}, "loss",
                          unit="hidden token")


def _rows(stream: TokenStream, starts: Int64[np.ndarray, " B"], context: int) -> Batch:
    """The windows that begin at ``starts``; the last one of the stream may be shorter."""
    count = np.minimum(context, len(stream) - starts)
    places = starts[:, None] + np.arange(context)
    inside = np.arange(context) < count[:, None]
    places = np.where(inside, places, 0)
    ids = np.where(inside, stream.tokens[places], 0).astype(np.int64)
    return Batch(ids, ids, stream.begins[places] & inside, inside, np.zeros_like(ids),
                 count=None if inside.all() else count, places=places, epoch=np.zeros(len(starts), dtype=np.int64))
