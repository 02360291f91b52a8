"""The task of T5: write the spans of running text that are hidden from the source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Int64
from pydantic import Field
from torch import Tensor

from weft.core.errors import DataError
from weft.core.model import EncoderInputs, LanguageModel, Model, ModelState
from weft.core.part_config import About
from weft.core.registry import register
from weft.core.span import Loss, Span
from weft.data import Batch, Repeated, ShuffledBatches, TokenStream
from weft.data.batch_source import Lengths
from weft.data.batches import MadeOfText
from weft.data.pairs import ends_of
from weft.data.settings import DataSettings
from weft.data.span_corruption import SpanCorruption, SpanCounts, longest_rows
from weft.evaluation.measuring import evaluating, exponential, finite, in_batches, spread
from weft.tasks.base import BatchSums, Count, Rows, Task, TaskConfig, TaskDeclared, TaskSettings, on_device
from weft.tasks.masked import HELD_OUT_SEED
from weft.tasks.objective import cross_entropy
from weft.tasks.protocols import AddsIds
from weft.tasks.token_streams import HeldOut, Material, held_out_text, text_material
from weft.tasks.validation import Validation, part_measured
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig


@register
class SpanCorruptionConfig(TaskConfig, AddsIds):
    """Write the hidden spans of running text, each behind the sentinel that stands in its place in the source.

    With the sentinels X, Y, Z, the text ``a b c d e f g h`` whose spans ``c d`` and ``h`` are hidden is the source
    ``a b X e f g Y`` and the target ``X c d Y h Z``, each followed by the token that ends a document. The number of
    hidden tokens and of spans is the same in every row, and so are the lengths of sources and targets; a row of text is
    as long as the context allows.

    Attributes:
        rate: share of the tokens that is hidden.
        mean_span: mean number of tokens of a hidden span.
        sentinels: how many sentinels are added after the tokenizer's last id, if its vocabulary has none
            (``<extra_id_0>``, ``<extra_id_1>``, ... as T5's); the first one used has the highest id.
        final_sentinel: whether a further sentinel follows the last span in the target (the paper's figure 2); without,
            the target has the token that ends a document alone (the released code).
        joined: a decoder alone reads source and target as one row that fills the context, the source as its
            bidirectional prefix if its mask has one; otherwise an encoder reads the source.
    """

    kind: ClassVar[str] = "span_corruption"
    about = About(
        also_called=("t5", "span_denoising", "denoising", "span_masking", "infilling"),
        source="Raffel et al. 2020, sections 3.1.4 and 3.3.4; Tay et al. 2023 (UL2), section 3 (one row)",
        equation=(r"L = -\frac{1}{T} \sum_{t} \log p(y_t \mid y_{<t}, \tilde{x}), \qquad \tilde{x} = a\, b\, X\, e\, "
                  r"f\, g\, Y, \quad y = X\, c\, d\, Y\, h\, Z"),
        differs=(("masked", "whole spans are hidden behind one sentinel each, and written in order."),
                 ("sequence_to_sequence", "source and target are cut from one text.")),
        pictured=(("source: the X sat on Y", ""),
                  ("begin", "X"),
                  ("X", "cat"),
                  ("cat", "Y"),
                  ("Y", "the mat"),
                  ("the mat", "Z")))

    rate: float = Field(default=0.15, gt=0, lt=1)
    mean_span: float = Field(default=3.0, ge=1, allow_inf_nan=False)
    sentinels: int = Field(default=100, gt=0)
    final_sentinel: bool = True
    joined: bool = False

    def declares(self) -> TaskDeclared:
        return TaskDeclared(smooths=True)

    def create(self, settings: TaskSettings) -> SpanCorruptionTask:
        return SpanCorruptionTask(self, settings)

    def extra_ids(self, tokenizer: TokenizerConfig) -> int:
        held = tokenizer.from_file()
        return self.sentinels if held is None or not named_sentinels(held) else 0

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(rate=0.5, mean_span=1.5, sentinels=20, final_sentinel=False), cls(joined=True)]


def named_sentinels(tokenizer: Tokenizer) -> list[int]:
    """The ids of ``<extra_id_0>``, ``<extra_id_1>``, ... in a vocabulary; empty if it has none."""
    found = list[int]()
    while (name := f"<extra_id_{len(found)}>") in tokenizer.special_tokens:
        found.append(tokenizer.special_tokens[name])
    return found


@dataclass(frozen=True, eq=False)
class CorruptibleText:
    """A stream, with the ids that stand for hidden spans and for the ends of sources and targets.

    Attributes:
        stream: the tokens.
        sentinels: in the order in which they are used.
        opening: before each target, one or none.
        closing: after each source and target, one or none.
    """

    stream: TokenStream
    sentinels: Int64[np.ndarray, " s"]
    opening: Int64[np.ndarray, " o"]
    closing: Int64[np.ndarray, " c"]

    @property
    def repeated(self) -> Repeated | None:
        """See `weft.tasks.base.Examples`."""
        return self.stream.repeated

    def __len__(self) -> int:
        return len(self.stream)


class SpanColumns(NamedTuple):
    """Rows: the source [B,S], the target with its opening token [B,U]."""

    source: Tensor
    target: Tensor


class SpanCorruptionTask(Task[SpanCorruptionConfig, CorruptibleText, SpanColumns]):
    """Rows of a stream with hidden spans. The loss is the summed negative log-likelihood of the targets' tokens, each
    predicted from the source and the true ones before it; sentinels and the closing token are predicted too.

    Documents in a row are read together, as in T5's training. It measures the loss per token, the perplexity, and the
    share of tokens that the model ranks first, with the same hidden spans of the held-out text in every run.
    """

    def problems(self, model: Model) -> list[str]:
        kind, joined = model.config.kind, self.config.joined
        if not isinstance(model, LanguageModel):
            return [f"model: a model of kind {kind!r} predicts no next token. Give an encoder-decoder, or a decoder "
                    "with task.joined: true."]
        if model.takes_source == joined:
            reads, remedy = ("reads a source by itself", "Leave task.joined out.") if joined else (
                "reads no source", "Give an encoder-decoder, or set task.joined: true.")
            return [f"task.joined: {str(joined).lower()}, and a model of kind {kind!r} {reads}. {remedy}"]
        found = super().problems(model)
        if model.takes_source and model.source_vocab_size < model.vocab_size:
            found.append(f"model.encoder.vocab_size: {model.source_vocab_size}, while targets have {model.vocab_size} "
                         "ids; one tokenizer writes both. Leave it out, and it is filled in.")
        counts = self._counts(1, 1)
        if counts is None:
            source, context = self.settings.source_context, self.settings.context
            if source < context:
                return [*found, f"model.encoder: positions for {source} tokens, in which no hidden span fits. Give it "
                        "more."]
            return [*found, f"training.context: {context} tokens, in which no hidden span fits. Raise it."]
        return found

    def _counts(self, opening: int, closing: int) -> SpanCounts | None:
        """The longest rows that fit into the context, with so many tokens that open and close a text."""
        config, context = self.config, self.settings.context
        target = opening + config.final_sentinel + closing - 1  # the last token of a target is not read

        def fits(counts: SpanCounts) -> bool:
            sides = counts.rest + counts.spans + closing, counts.noise + counts.spans + target
            if config.joined:
                return sum(sides) <= context
            return sides[0] <= self.settings.source_context and sides[1] <= context

        return longest_rows(fits, 2 * context, config.rate, config.mean_span)

    def material(self, data: DataSettings, tokenizer: TokenizerConfig) -> Material[CorruptibleText]:
        found = text_material(data, tokenizer)
        made = found.tokenizer
        return Material(found.corpus, found.corpus_sha256, made, self._readied(found.train, made),
                        self._readied(found.validation, made))

    def held_out(self, data: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> CorruptibleText:
        return self._readied(held_out_text(data, tokenizer, part), tokenizer)

    def _readied(self, stream: TokenStream, tokenizer: Tokenizer) -> CorruptibleText:
        """A stream with its sentinels. Raises `DataError`: tokens that do not count, which a hidden span could not
        leave out; no token from which a target's first is predicted; or more spans than sentinels."""
        if stream.flags is not None:
            raise DataError(f"some tokens are read and not scored, while the task {self.name!r} hides any.",
                            where=stream.corpus, remedy="Leave out data.prompt_field.")
        opening, closing = ends_of(tokenizer)
        if not len(opening):
            raise DataError(f"the tokenizer {tokenizer.name} has no token that opens a text, from which a target's "
                            "first token is predicted.", where="tokenizer", remedy="Give another tokenizer.")
        named, size = named_sentinels(tokenizer), tokenizer.vocab_size
        sentinels = np.array(named or range(size + self.config.sentinels - 1, size - 1, -1), dtype=np.int64)
        counts = self._counts(len(opening), len(closing))
        assert counts is not None, "a context without room is refused before"
        needed = counts.spans + self.config.final_sentinel
        if needed > len(sentinels):
            raise DataError(f"a row of {counts.tokens} tokens has {counts.spans} hidden spans, which need {needed} "
                            f"sentinels, and there are {len(sentinels)}.", where="task.sentinels",
                            remedy="Lower training.context, or raise task.mean_span" + (
                                "." if named else " or task.sentinels."))
        return CorruptibleText(stream, sentinels, opening.astype(np.int64), closing.astype(np.int64))

    def _corruption(self, examples: CorruptibleText, seed: int) -> SpanCorruption:
        counts = self._counts(len(examples.opening), len(examples.closing))
        assert counts is not None, "a context without room is refused before"
        return SpanCorruption(counts, examples.sentinels, examples.opening, examples.closing,
                              self.config.final_sentinel, seed)

    def batches(self, examples: CorruptibleText) -> MadeOfText[Rows[SpanColumns]]:
        settings, made = self.settings, self._corruption(examples, self.settings.seed)
        text = ShuffledBatches(examples.stream, rows=settings.rows, length=made.counts.tokens, seed=settings.seed,
                               reshuffle=settings.reshuffle)
        target, source = made.target_length - 1, made.source_length
        return MadeOfText(
            text, partial(_rows, made), predicted=target,
            lengths=Lengths(source + target) if self.config.joined else Lengths(target, source),
            notice=f"rows of {made.counts.tokens:,} tokens, of which {made.counts.noise:,} in {made.counts.spans:,} "
                   f"spans are hidden: sources of {source:,} tokens, targets of {target:,}")

    def loss(self, model: Model, columns: SpanColumns, state: ModelState | None) -> BatchSums:
        assert isinstance(model, LanguageModel), "a model that does not fit is refused before"
        h, losses = self._read(model, columns)
        targets = columns.target[:, 1:]
        scored = torch.ones_like(targets, dtype=torch.bool)
        found = cross_entropy(model.readout, h, targets, scored, self.settings.objective)
        return BatchSums(found.nats, found.loss, None, losses)

    def _read(self, model: LanguageModel, columns: SpanColumns) -> tuple[Tensor, tuple[Loss, ...]]:
        """The vectors from which the target's tokens are predicted [B,U-1,D], and the model's auxiliary losses."""
        read = columns.target[:, :-1]
        if not self.config.joined:
            source = model.encoded(EncoderInputs(tokens=columns.source), Span())
            out = model.hidden(read, None, Span(memory=source.memory))
            return out.y, (*source.losses, *out.losses)
        ids = torch.cat([columns.source, read], dim=1)
        first = torch.arange(ids.shape[1], device=ids.device) < columns.source.shape[1]
        out = model.hidden(ids, None, Span(prefix=first.expand(len(ids), -1)))
        return out.y[:, columns.source.shape[1]:], out.losses

    def measure(self, model: Model, examples: CorruptibleText, batches: int | None = None) -> Validation:
        """Measure windows of the text that do not overlap, each once; a last one that is not whole is left out."""
        assert isinstance(model, LanguageModel), "a model that does not fit is refused before"
        corruption, stream = self._corruption(examples, HELD_OUT_SEED), examples.stream
        length = corruption.counts.tokens
        stream.require(length, "one row", f"Give more text to hold out, or lower training.context ({length} tokens).")
        groups = in_batches(len(stream) // length, self.settings.rows)
        nats, right, tokens = 0.0, 0, 0
        with evaluating(model) as device:
            for windows in spread(groups, batches):
                starts = windows * length
                ids = stream.tokens[starts[:, None] + np.arange(length)].astype(np.int64)
                made = corruption.corrupt(ids, starts, np.zeros_like(starts))
                columns = on_device(SpanColumns(*map(torch.from_numpy, (made.source, made.target))), device)
                h, targets = self._read(model, columns)[0], columns.target[:, 1:]
                nats -= finite(model.readout.log_prob(h, targets).double().sum(), stream.corpus)
                right += int((model.readout.logits(h).argmax(-1) == targets).sum())
                tokens += targets.numel()
        protocol = (f"{self.config.rate:.0%} of the tokens hidden in spans of {self.config.mean_span:g} on average, "
                    f"the same in every run; rows of {length} tokens, each once{part_measured(batches, len(groups))}")
        return Validation(None, nats / tokens, tokens, 0, protocol,
                          {"perplexity": exponential(nats / tokens), "accuracy": right / tokens}, "loss")


def _rows(corruption: SpanCorruption, text: Batch) -> Rows[SpanColumns]:
    """Rows of text with spans hidden."""
    assert text.places is not None and text.epoch is not None, "batches of a stream have places and epochs"
    made = corruption.corrupt(text.inputs, text.places[:, 0], text.epoch)
    return Rows(SpanColumns(*map(torch.from_numpy, (made.source, made.target))),
                Count(len(made.target), made.target[:, 1:].size))
