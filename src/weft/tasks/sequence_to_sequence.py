"""The task of encoder-decoders: predict a target token by token from a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Int64
from pydantic import Field, model_validator
from torch import Tensor

from weft.core.config import rule
from weft.core.errors import DataError
from weft.core.model import EncoderInputs, LanguageModel, Model, ModelState
from weft.core.part_config import About
from weft.core.registry import register
from weft.core.span import Span
from weft.data.batch_source import RowBatches
from weft.data.corpus import Corpus
from weft.data.duplicates import Repeated
from weft.data.layout import layout_of
from weft.data.orders import LengthOrder, RowOrder
from weft.data.pairs import Pairs, encode_pairs, texts_of
from weft.data.records import Fields, TextRecord, text_of
from weft.data.sequences import widths
from weft.data.settings import DataSettings
from weft.evaluation.measuring import evaluating, exponential, finite, spread
from weft.tasks.base import BatchSums, Count, Rows, TaskDeclared, TaskSettings, on_device
from weft.tasks.objective import cross_entropy
from weft.tasks.records import RecordTask, RecordTaskConfig, held_out_part
from weft.tasks.token_streams import HeldOut
from weft.tasks.validation import Validation, part_measured
from weft.tokenizers import Tokenizer


@register
class SequenceToSequenceConfig(RecordTaskConfig):
    """Predict each token of a record's target from those before it and from the record's source.

    Attributes:
        source_field: the field that holds the source; for two text files, what stands for ``{}`` in the path of the
            sources.
        target_field: the same for the target.
        batch_tokens: tokens of a batch at most, of the sources and of the targets each, padding counted; pairs of about
            the same length are then batched together, and ``training.batch_size`` is not used. None: a batch is
            ``training.batch_size`` pairs of any length.
        cut: pairs longer than the context, or than the encoder has positions for, are cut at their ends and counted;
            otherwise they are refused.
    """

    kind: ClassVar[str] = "sequence_to_sequence"
    about = About(
        also_called=("seq2seq", "translation", "summarization", "encoder_decoder"),
        source="Sutskever et al. 2014, section 2; Williams and Zipser 1989 (teacher forcing)",
        equation=r"L = -\frac{1}{T} \sum_{t=1}^{T} \log p(y_t \mid y_{<t}, x)",
        differs=(("next_token", "every target has a source that an encoder reads."),
                 ("span_corruption", "sources and targets are given in place of being cut from one text.")),
        pictured=(("source: die Katze saß", ""), ("begin", "the"), ("the", "cat"), ("cat", "sat"), ("sat", "end")))

    source_field: str = Field(default="source", min_length=1)
    target_field: str = Field(default="target", min_length=1)
    batch_tokens: int | None = Field(default=None, gt=0)
    cut: bool = False

    def declares(self) -> TaskDeclared:
        return TaskDeclared(smooths=True, batch_tokens=self.batch_tokens)

    @model_validator(mode="after")
    def _two_fields(self) -> Self:
        if self.source_field == self.target_field:
            raise rule("target_field", f"{self.target_field!r} is the field of the source.", "Name another field.")
        return self

    def create(self, settings: TaskSettings) -> SequenceToSequence:
        return SequenceToSequence(self, settings)

    def fields(self) -> Fields:
        return {"source_field": self.source_field, "target_field": self.target_field}

    def held_out_texts(self, data: DataSettings, part: HeldOut) -> Corpus:
        """The records of a held-out part. Raises `DataError`: they cannot be read, or the run has no such part."""
        return held_out_part(self.parts(data), part)

    def texts_of(self, corpus: Corpus) -> Iterator[str]:
        return texts_of(corpus)

    def keep(self, record: TextRecord) -> tuple[Any, ...]:
        found = tuple(text_of(value, setting, field, record.where)
                      for value, (setting, field) in zip(record.values, self.fields().items(), strict=True))
        for text, field in zip(found, self.fields().values(), strict=True):
            if not text.strip():
                raise DataError(f"the field {field!r} is empty.", where=record.where,
                                remedy="Give both a source and a target, or remove that record.")
        return found

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(source_field="en", target_field="de", batch_tokens=64, cut=True)]


class PairColumns(NamedTuple):
    """Pairs: source ids and counts, the decoder's inputs and targets, which targets are scored, and the number of
    inputs of each row."""

    source: Tensor
    source_count: Tensor
    inputs: Tensor
    targets: Tensor
    scored: Tensor
    target_count: Tensor


class SequenceToSequence(RecordTask[SequenceToSequenceConfig, Pairs, PairColumns]):
    """Rows of sources and targets. The loss is the summed negative log-likelihood of the targets' tokens, each
    predicted from the true ones before it (teacher forcing); the closing token is predicted too.

    It measures that loss and the perplexity per token of the targets, and bits per byte of their text.
    """

    def problems(self, model: Model) -> list[str]:
        kind = model.config.kind
        if not isinstance(model, LanguageModel):
            return [f"model: a model of kind {kind!r} predicts no next token. Give an encoder-decoder."]
        if not model.takes_source:
            return [f"model: a model of kind {kind!r} reads no source. Give an encoder-decoder, or task: next_token "
                    "with data.prompt_field."]
        found, budget = super().problems(model), self.config.batch_tokens
        if budget is not None and budget <= self.settings.context:
            found.append(f"task.batch_tokens: {budget} tokens, which a pair of training.context "
                         f"{self.settings.context} with its opening token exceeds. Raise it, or lower the context.")
        if model.source_vocab_size < model.vocab_size:
            found.append(f"model.encoder.vocab_size: {model.source_vocab_size}, while targets have "
                         f"{model.vocab_size} ids; one tokenizer writes both. Leave it out, and it is filled in.")
        return found

    def encode(self, corpus: Corpus, tokenizer: Tokenizer, repeated: Repeated | None) -> Pairs:
        if layout_of(tokenizer).opening is None:
            raise DataError(f"the tokenizer {tokenizer.name} has no token that opens a text, from which a "
                            "target's first token is predicted.", where="tokenizer", remedy="Give another tokenizer.")
        return encode_pairs(corpus, tokenizer, self.settings.source_context, self.settings.context, repeated,
                            cut=self.config.cut)

    def batches(self, examples: Pairs) -> RowBatches[Rows[PairColumns]]:
        order, notice = self._order(examples), None
        narrow = self.config.batch_tokens is not None
        if examples.cut:
            source, context = self.settings.source_context, self.settings.context
            limits = f"of {context} tokens" if source == context else (
                f"({source} tokens of a source, {context} of a target)")
            notice = (f"{examples.cut:,} of {len(examples.sources):,} pairs are longer than the context {limits} and "
                      "were cut at their ends")
        # The encoder reads the source, and the decoder as many tokens of the target as it predicts.
        return RowBatches(order, lambda chosen, share, step: pair_rows(examples, chosen, share, narrow=narrow),
                          tokens=order.rows * len(examples) / order.size,
                          source_tokens=order.rows * len(examples.sources.ids) / order.size, notice=notice)

    def _order(self, examples: Pairs) -> RowOrder | LengthOrder:
        settings, budget, where = self.settings, self.config.batch_tokens, examples.corpus
        if budget is None:
            return settings.order(len(examples.sources), where)
        return LengthOrder(examples.sources, examples.targets, budget=budget, seed=settings.seed,
                           reshuffle=settings.reshuffle, where=where)

    def loss(self, model: Model, columns: PairColumns, state: ModelState | None) -> BatchSums:
        assert isinstance(model, LanguageModel), "a model that does not fit is refused before"
        source = model.encoded(EncoderInputs(tokens=columns.source), Span(count=columns.source_count))
        out = model.hidden(columns.inputs, None, Span(count=columns.target_count, memory=source.memory))
        found = cross_entropy(model.readout, out.y, columns.targets, columns.scored, self.settings.objective)
        return BatchSums(found.nats, found.loss, None, (*source.losses, *out.losses))

    def measure(self, model: Model, examples: Pairs, batches: int | None = None) -> Validation:
        """Measure each pair once, in order; those of a budget of tokens from the shortest to the longest."""
        groups = self._order(examples).once()
        nats, lost, tokens, size = 0.0, 0.0, 0, 0
        with evaluating(model) as device:
            for rows in spread(groups, batches):
                laid = pair_rows(examples, rows, slice(None))
                found, count = self.loss(model, on_device(laid.columns, device), None), laid.count
                nats += finite(found.nats, examples.corpus)
                tokens, size, lost = tokens + count.predictions, size + count.bytes, lost + count.lost
        if not size:
            raise DataError(f"the {tokens} tokens to predict represent no text, so there are no bits per byte.",
                            where=examples.corpus, remedy="Give more records to hold out.")
        cut = f"; {examples.cut} pairs cut to the context" if examples.cut else ""
        protocol = ("each token of a target predicted from its source and the true tokens before it; the end of a "
                    f"target counts as a token of 0 bytes{cut}{part_measured(batches, len(groups))}")
        return Validation.of_text(nats, lost, tokens, size, protocol, {"perplexity": exponential(nats / tokens)})


def pair_rows(pairs: Pairs, chosen: Int64[np.ndarray, " B"], share: slice, *,
              narrow: bool = False) -> Rows[PairColumns]:
    """A share of the pairs ``chosen`` as padded rows, as wide as `weft.data.sequences.widths` gives, or with ``narrow``
    as the longest of ``chosen``. The tokens of targets are the decoder's inputs and, one position later, its targets.
    """
    rows = chosen[share]
    source, target = widths((pairs.sources, chosen), (pairs.targets, chosen))
    if narrow:
        source, target = (int(column.lengths[chosen].max()) for column in (pairs.sources, pairs.targets))
    sources, targets = pairs.sources.padded(rows, source), pairs.targets.padded(rows, max(2, target))
    sizes = pairs.target_bytes.padded(rows, max(2, target))
    count = (targets.count - 1).clip(0)
    scored = np.arange(targets.ids.shape[1] - 1) < count[:, None]
    columns = PairColumns(*(torch.from_numpy(np.ascontiguousarray(each)) for each in (
        sources.ids, sources.count, targets.ids[:, :-1], targets.ids[:, 1:], scored, count)))
    return Rows(columns, Count(len(rows), int(count.sum()), int(sizes.ids[:, 1:].sum()),
                               lost=float(pairs.lost[rows].sum())))
