"""Perplexity and bits per byte of a language model on a corpus, with a description of the protocol."""

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
from weft.evaluation.by_document import DocumentScore, DocumentSums, Means, mean_perplexity
from weft.evaluation.measuring import exponential, spread
from weft.evaluation.pieces import TargetPiece, document_pieces, stretches, window_pieces

Mode: TypeAlias = Literal["windows", "documents"]


@dataclass(frozen=True)
class Protocol:
    """How tokens were counted; figures under different protocols cannot be compared.

    Attributes:
        mode: ``windows`` of bounded context, or whole ``documents`` with the state carried through.
        window: inputs of a window, in tokens; None for whole documents.
        stride: targets by which windows advance; None for whole documents.
        fenced: whether a token's context is limited to its own document.
        ends_scored: whether the token that ends a document is scored, as 0 bytes; otherwise each document's first token
            is not scored.
        start: the context of the first scored token, in words.
        tokenizer_sha256: the tokenizer's fingerprint; its token is the unit.
        part: the part of the corpus that was scored, in words; None: all of it.
        documents: documents of the corpus that were looked for in the training text; None: not known.
        documents_in_training: those that are also in the training text of the run (`weft.data.duplicates`); None: not
            known.
        share_in_training: the part of the text that is; None: not known.
        flagged: whether the data have a flag for each token that says whether it is scored; an unscored token is read,
            and adds neither nats nor bytes.
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
    share_in_training: float | None = None

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
        if self.documents is None or self.documents_in_training is None:
            return ""
        found = Repeated(self.documents_in_training, self.documents, self.share_in_training)
        return f"; {found.describe()}" if found.told else ""


@dataclass(frozen=True)
class Evaluation(Record, Means):
    """Sums over a corpus, and the measures that follow from them.

    Attributes:
        nats: the sum of negative log-likelihoods; infinite if a scored token had probability zero.
        tokens: the number of scored tokens.
        bytes: the bytes of UTF-8 text that the scored tokens represent, exactly.
        impossible: the number of scored tokens with probability zero.
        protocol: how tokens were counted.
        documents: the sums of each document with a scored token, in the order of the corpus; empty unless asked for.
        words: the words of the corpus, separated by white space; None: not known.
        lost: nats for text that the scored tokens do not tell (`weft.tokenizers.lost`), which count in what is per byte
            or per word; NaN: unknown, and there are no bits per byte.
    """

    nats: float
    tokens: int
    bytes: int
    impossible: int
    protocol: Protocol
    documents: tuple[DocumentScore, ...] = ()
    words: int | None = None
    lost: float = 0.0

    @property
    def bits_per_token(self) -> float:
        """nats / ln 2 / tokens."""
        return self.loss / math.log(2)

    @property
    def word_perplexity(self) -> float | None:
        """Perplexity per word: exp((nats + lost) / words), whatever the tokenizer; None if words or lost text are not
        known."""
        return exponential((self.nats + self.lost) / self.words) if self.words and not math.isnan(self.lost) else None

    @property
    def mean_document_perplexity(self) -> float | None:
        """The mean over documents of exp(a document's nats / its tokens); None without documents. Each document has the
        same weight, while in `perplexity` each token has."""
        return mean_perplexity(self.documents) if self.documents else None

    def to_json(self) -> dict[str, Any]:
        """Plain data, with all means and the protocol in words; without the documents, see `DocumentScore.to_json`."""
        means = {"perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte,
                 "lost_bits_per_byte": self.lost_bits_per_byte, "loss": self.loss,
                 "bits_per_token": self.bits_per_token, "word_perplexity": self.word_perplexity,
                 "mean_document_perplexity": self.mean_document_perplexity}
        protocol = {**plain(self.protocol), "description": self.protocol.describe()}
        sums = super().to_json()
        return {**plain(means), **sums, "documents": len(self.documents) or None, "protocol": protocol}


def evaluate(model: LanguageModel, stream: TokenStream, *, context: int | None = None, stride: int | None = None,
             mode: Mode = "windows", fenced: bool = True, batch_size: int = 8,
             batches: int | None = None, by_document: bool = False) -> Evaluation:
    """Perplexity and bits per byte of a corpus; each token that can be predicted is scored exactly once.

    Args:
        model: any causal language model; it is scored in evaluation mode.
        stream: the corpus as tokens (`weft.data.encode_corpus`).
        context: tokens of a window; None: the model's own context. For whole documents, the tokens of one call, which
            limits memory and does not change the results.
        stride: tokens by which windows advance; None: the context.
        mode: ``windows``, or ``documents`` to pass on the state through each document from its first to its last token.
        fenced: whether a token's context is limited to its own document.
        batch_size: windows or documents that are run together; it does not change the results.
        batches: score only so many batches of windows, spread evenly over the corpus; None: all.
        by_document: also give the sums of each document.

    Raises:
        DataError: a context, stride or batch size is out of range, or there is no token to predict.
        InputError: the corpus has ids beyond the model's vocabulary, or more tokens than the model has positions.
        UnsupportedError: the model is bidirectional, or needs a source.
        FailedError: the model's output is NaN.
    """
    window = model.config.context if context is None else context
    _check(model, stream, mode, stride, batches)
    documents = DocumentSums(stream) if by_document else None
    # Not inference_mode: tensors that a layer caches here must be usable in a later backward pass.
    with evaluation_mode(model), torch.no_grad():
        if mode == "windows":
            windows = EvaluationWindows(stream, context=window, stride=stride, rows=batch_size)
            longest = min(window, len(stream) - 1)
            require_room(model, longest, "context", f"windows of {longest} tokens", "Give a smaller context.")
            chosen = frozenset(spread(range(len(windows)), batches))
            part = f"{len(chosen)} of {len(windows)} batches, spread evenly" if len(chosen) < len(windows) else None
            protocol = replace(_protocol(stream, mode, window, windows.stride, fenced), part=part)
            return _sum(model, window_pieces(model, windows, fenced=fenced, chosen=chosen), protocol, documents)
        pieces = _documents(model, stream, window, fenced, batch_size)
        return _sum(model, pieces, _protocol(stream, mode, None, None, fenced), documents)


def _documents(model: LanguageModel, stream: TokenStream, chunk: int, fenced: bool, rows: int) -> Iterator[TargetPiece]:
    for name, value in (("context", chunk), ("batch_size", rows)):
        if value < 1:
            raise DataError(f"must be at least 1, received {value}.", where=name, remedy="Choose one in range.")
    stream.require(2, "predicting one token from another", "Give more text.")
    documents = stretches(stream, fenced=fenced)
    longest = max((document.length for document in documents), default=0)
    require_room(model, longest, stream.corpus, f"a document of {longest} tokens", "Evaluate in windows.")
    return document_pieces(model, stream, documents, chunk=chunk, rows=rows)


def _check(model: LanguageModel, stream: TokenStream, mode: str, stride: int | None, batches: int | None) -> None:
    require_causal(model, "evaluation")
    if mode not in ("windows", "documents"):
        raise InputError(f"unknown mode {mode!r}.", where="mode", remedy="Give 'windows' or 'documents'.")
    if mode == "documents" and stride is not None:
        raise InputError(f"a stride of {stride} was given, but whole documents have no stride.", where="stride",
                         remedy="Leave it out, or evaluate in windows.")
    if batches is not None and (batches < 1 or mode == "documents"):
        raise InputError(f"{batches} batches of {mode} cannot be scored.", where="batches",
                         remedy="Give 1 or more batches of windows, or leave it out.")
    if model.takes_source:
        raise UnsupportedError("this model decodes from a source, and a corpus has none.", where=type(model).__name__,
                               remedy="Score rows of source and target instead.")
    largest = int(stream.tokens.max()) if len(stream) else 0
    if largest >= model.vocab_size:
        raise InputError(f"id {largest} is outside the model's vocabulary of {model.vocab_size} ids.",
                         where=stream.corpus, remedy="Encode the corpus with the tokenizer of the model's training.")


def _protocol(stream: TokenStream, mode: Mode, window: int | None, stride: int | None, fenced: bool) -> Protocol:
    opens = bool(len(stream) and stream.begins[0] and not stream.byte_lengths[0])
    start = ("the first token of a document is predicted from its start symbol" if opens
             else "no start symbol: the first token is only read")
    return Protocol(mode, window, stride, fenced, stream.begins_scored, start, stream.corpus, stream.corpus_sha256,
                    stream.tokenizer_sha256, documents=stream.repeated.of if stream.repeated else None,
                    documents_in_training=stream.repeated.found if stream.repeated else None,
                    flagged=stream.flags is not None,
                    share_in_training=stream.repeated.share if stream.repeated else None)


def _sum(model: LanguageModel, pieces: Iterator[TargetPiece], protocol: Protocol,
         documents: DocumentSums | None) -> Evaluation:
    """The sums over all pieces, in float64; without documents, read on the host once per piece."""
    nats, lost, tokens, size, impossible = 0.0, 0.0, 0, 0, 0
    for piece in pieces:
        log_probs = model.readout.log_prob(piece.h, piece.targets).double()
        nats -= float(log_probs.sum())
        impossible += int((log_probs == -math.inf).sum())
        tokens += piece.targets.numel()
        size, lost = size + piece.bytes, lost + piece.lost
        if documents is not None:
            documents.add(piece.places, -log_probs[0].cpu().numpy())
        if math.isnan(nats):
            raise FailedError("the model gives NaN.", where=protocol.corpus,
                              remedy="Check the checkpoint with weft check, or use a wider dtype.")
    if not tokens:
        raise DataError("no token can be predicted: every document has a single token.", where=protocol.corpus,
                        remedy="Give more text.")
    return Evaluation(nats, tokens, size, impossible, protocol, () if documents is None else documents.scores(),
                      lost=lost)
