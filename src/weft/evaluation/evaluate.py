"""How well a model predicts a text: perplexity and bits per byte over a corpus, with the protocol in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch

from weft.core.errors import DataError, FailedError, InputError, UnsupportedError
from weft.core.model import LanguageModel
from weft.core.strict_json import Record, plain
from weft.data import EvaluationWindows, Repeated, TokenStream
from weft.decoding.mode import evaluation_mode, require_causal, require_room
from weft.evaluation.measuring import spread
from weft.evaluation.numbers import exponential
from weft.evaluation.pieces import Piece, document_pieces, stretches, window_pieces

Mode: TypeAlias = Literal["windows", "documents"]


@dataclass(frozen=True)
class Protocol:
    """How tokens were counted; figures under different protocols cannot be compared.

    Attributes:
        mode: ``windows`` of bounded context, or whole ``documents`` with the state carried through.
        window: inputs of a window, in tokens; None for whole documents.
        stride: targets by which windows advance; None for whole documents.
        fenced: tokens see those of their own document only.
        ends_scored: the token that ends a document is predicted too, and counts as 0 bytes; otherwise each
            document's first token is not predicted.
        start: what the first token that is predicted is predicted from.
        corpus: name of the corpus.
        corpus_sha256: its hash.
        tokenizer_sha256: the tokenizer's fingerprint: the unit is its token.
        part: which part of the corpus was scored; None: all of it.
        documents: of the corpus, and ``documents_in_training``: those that also stand in the training text of the run
            that held it out; None: not known.
        flagged: the data say of every token whether it counts; one that does not is read, and adds neither nats nor
            bytes.
    """

    mode: Mode
    window: int | None
    stride: int | None
    fenced: bool
    ends_scored: bool
    start: str
    corpus: str
    corpus_sha256: str
    tokenizer_sha256: str
    part: str | None = None
    documents: int | None = None
    documents_in_training: int | None = None
    flagged: bool = False

    def describe(self) -> str:
        """The protocol in one sentence."""
        if self.mode == "windows":
            reach = f"windows of {self.window} tokens advancing by {self.stride}, each from an empty state"
        elif self.fenced:
            reach = "each document whole, its state carried from its first token to its last"
        else:
            reach = "the whole corpus as one document, its state carried from the first token to the last"
        fence = "documents fenced" if self.fenced else "documents not fenced: context runs across their borders"
        ends = ("the end of a document counts as a token of 0 bytes" if self.ends_scored
                else "a document's first token is not scored")
        return (f"corpus perplexity exp(sum of negative log-likelihoods / tokens), unit the tokenizer's token, every "
                f"token scored once; {reach}; {fence}; {self.start}; {ends}"
                + ("; tokens flagged as not scored are read, and count neither nats nor bytes" if self.flagged else "")
                + (f"; {self.part}" if self.part else "") + self._repeated())

    def _repeated(self) -> str:
        if self.documents is None or not self.documents_in_training:
            return ""
        return f"; {Repeated(self.documents_in_training, self.documents).describe()}"


@dataclass(frozen=True)
class Evaluation(Record):
    """Sums over a corpus and what follows from them.

    Attributes:
        nats: summed negative log-likelihood; infinite when the model held impossible what came.
        tokens: scored.
        bytes: of UTF-8 text that the scored tokens stand for, exactly.
        impossible: scored tokens that the model gave probability zero.
        protocol: how tokens were counted.
    """

    nats: float
    tokens: int
    bytes: int
    impossible: int
    protocol: Protocol

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Per token: exp(nats / tokens)."""
        return exponential(self.loss)

    @property
    def bits_per_byte(self) -> float | None:
        """nats / ln 2 / bytes; None when the scored tokens stand for no text."""
        return self.nats / math.log(2) / self.bytes if self.bytes else None

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the means."""
        means = {"perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte, "loss": self.loss}
        protocol = {**plain(self.protocol), "description": self.protocol.describe()}
        return {**plain(means), **super().to_json(), "protocol": protocol}


def evaluate(model: LanguageModel, stream: TokenStream, *, context: int | None = None, stride: int | None = None,
             mode: Mode = "windows", fenced: bool = True, batch_size: int = 8,
             batches: int | None = None) -> Evaluation:
    """Perplexity and bits per byte of a corpus; each token that can be predicted is scored exactly once.

    Args:
        model: any causal language model, in evaluation mode while it is scored.
        stream: the corpus as tokens (`weft.data.encode_corpus`).
        context: inputs of a window; by default the model's own context. With whole documents: tokens that are run at
            once, which bounds memory and changes nothing else.
        stride: targets by which windows advance; by default the context.
        mode: ``windows``, or ``documents`` to carry the state through each document from end to end.
        fenced: tokens see those of their own document only; otherwise what came before it too.
        batch_size: windows or documents that are run together; it does not change the results.
        batches: score only so many batches of windows, spread evenly over the corpus; None: all.

    Raises:
        DataError: a context, stride or batch size out of range, or nothing to predict.
        InputError: a vocabulary that the model does not have, or more tokens than it has positions for.
        UnsupportedError: a bidirectional model, or one that needs a source.
        FailedError: the model gives NaN.
    """
    window = model.config.context if context is None else context
    _check(model, stream, mode, stride, batches)
    # Not inference_mode: what a layer may keep from here must still serve a backward pass later.
    with evaluation_mode(model), torch.no_grad():
        if mode == "windows":
            windows = EvaluationWindows(stream, context=window, stride=stride, rows=batch_size)
            longest = min(window, len(stream) - 1)
            require_room(model, longest, "context", f"windows of {longest} tokens", "Give a smaller context.")
            chosen = frozenset(spread(range(len(windows)), batches))
            protocol = replace(_protocol(stream, mode, window, windows.stride, fenced), part=_part(windows, chosen))
            return _sum(model, window_pieces(model, windows, fenced=fenced, chosen=chosen), protocol)
        pieces = _documents(model, stream, window, fenced, batch_size)
        return _sum(model, pieces, _protocol(stream, mode, None, None, fenced))


def _documents(model: LanguageModel, stream: TokenStream, chunk: int, fenced: bool, rows: int) -> Iterator[Piece]:
    for name, value in (("context", chunk), ("batch_size", rows)):
        if value < 1:
            raise DataError(f"must be at least 1, received {value}.", where=name, remedy="Choose one in range.")
    stream.require(2, "predicting one token from another", "Give more text.")
    found = stretches(stream, fenced=fenced)
    longest = max((document.length for document in found), default=0)
    require_room(model, longest, stream.corpus, f"a document of {longest} tokens", "Evaluate in windows.")
    return document_pieces(model, stream, found, chunk=chunk, rows=rows)


def _part(windows: EvaluationWindows, chosen: frozenset[int]) -> str | None:
    return None if len(chosen) == len(windows) else f"{len(chosen)} of {len(windows)} batches, spread evenly"


def _check(model: LanguageModel, stream: TokenStream, mode: str, stride: int | None, batches: int | None) -> None:
    require_causal(model, "evaluation")
    if mode not in ("windows", "documents"):
        raise InputError(f"unknown mode {mode!r}.", where="mode", remedy="Give 'windows' or 'documents'.")
    if mode == "documents" and stride is not None:
        raise InputError(f"stride {stride} where documents are scored whole.", where="stride",
                         remedy="Leave it out, or evaluate in windows.")
    if batches is not None and (batches < 1 or mode == "documents"):
        raise InputError(f"{batches} batches of {mode}.", where="batches",
                         remedy="Give 1 or more, of windows, or leave it out.")
    if model.takes_source:
        raise UnsupportedError("this model decodes from a source, and a corpus has none.", where=type(model).__name__,
                               remedy="Score rows of source and target instead.")
    largest = int(stream.tokens.max()) if len(stream) else 0
    if largest >= model.vocab_size:
        raise InputError(f"id {largest} is outside the model's vocabulary of {model.vocab_size} ids.",
                         where=stream.corpus, remedy="Encode the corpus with the tokenizer the model was trained with.")


def _protocol(stream: TokenStream, mode: Mode, window: int | None, stride: int | None, fenced: bool) -> Protocol:
    opens = bool(len(stream) and stream.begins[0] and not stream.byte_lengths[0])
    start = ("the first token of a document is predicted from its start symbol" if opens
             else "no start symbol: the first token is only read")
    return Protocol(mode, window, stride, fenced, stream.begins_scored, start, stream.corpus, stream.corpus_sha256,
                    stream.tokenizer_sha256, documents=stream.repeated.of if stream.repeated else None,
                    documents_in_training=stream.repeated.found if stream.repeated else None,
                    flagged=stream.flags is not None)


def _sum(model: LanguageModel, pieces: Iterator[Piece], protocol: Protocol) -> Evaluation:
    """Sums in float64, read on the host once a piece."""
    nats, tokens, size, impossible = 0.0, 0, 0, 0
    for piece in pieces:
        log_probs = model.readout.log_prob(piece.h, piece.targets).double()
        nats -= float(log_probs.sum())
        impossible += int((log_probs == -math.inf).sum())
        tokens += piece.targets.numel()
        size += piece.bytes
        if math.isnan(nats):
            raise FailedError("the model gives NaN.", where=protocol.corpus,
                              remedy="Check the checkpoint with weft check, or use a wider dtype.")
    if not tokens:
        raise DataError("no token can be predicted: every document has a single token.", where=protocol.corpus,
                        remedy="Give more text.")
    return Evaluation(nats, tokens, size, impossible, protocol)
