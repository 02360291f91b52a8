"""Measurements of a trained model: how it predicts, place by place, and what decoding costs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int64

from weft.comparison.matching import state_bytes
from weft.comparison.results import DecodePoint, LengthPoint, PositionPoint, Sample
from weft.comparison.statistics import effective_clusters
from weft.comparison.study_settings import MeasureSettings
from weft.core.errors import DivergedError, FailedError, UserError
from weft.core.model import Counted, LanguageModel
from weft.data import EvaluationWindows, TokenStream
from weft.decoding import Row, Sampling, generate
from weft.decoding.mode import evaluation_mode
from weft.decoding.prompts import prepare
from weft.decoding.session import Session
from weft.evaluation import evaluate
from weft.evaluation.pieces import window_pieces
from weft.tokenizers import Tokenizer

FEWEST_DOCUMENTS = 20
"""With fewer, by their effective number, the bootstrap draws blocks of text instead."""
BLOCKS = 50
WARMING = 3
"""Steps of decoding before those that are timed."""
BATCH_TOKENS = 4096
"""Of windows that are scored at once."""
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Every target of a stream that counts, in order: its negative log-likelihood, the bytes it stands for, the
    document it belongs to, how many tokens of that document its window shows before it, and the nats for text that it
    does not tell, which count in what is per byte."""

    nats: Float64[np.ndarray, " N"]
    bytes: Int64[np.ndarray, " N"]
    document: Int64[np.ndarray, " N"]
    context: Int64[np.ndarray, " N"]
    lost: Float64[np.ndarray, " N"]

    @property
    def loss(self) -> float:
        """Nats per token."""
        return float(self.nats.sum()) / len(self.nats)

    @property
    def bits_per_byte(self) -> float:
        """Over all of them."""
        return float(self.paid.sum()) / math.log(2) / int(self.bytes.sum())

    @property
    def lost_bits_per_byte(self) -> float:
        """The part of the bits per byte that is for text which the tokenizer loses."""
        return float(self.lost.sum()) / math.log(2) / int(self.bytes.sum())

    @property
    def paid(self) -> Float64[np.ndarray, " N"]:
        """Nats of each target and of the text that it does not tell."""
        paid: np.ndarray = self.nats + self.lost
        return paid

    def clusters(self) -> tuple[list[float], list[int]]:
        """Summed nats and bytes of each document; of 50 blocks of equal bytes where there are few documents, or a few
        that are almost all of the text.

        Blocks are cut between bytes, and the nats of a token that stands for bytes on both sides are shared out by
        them, so that models with different tokenizers have the same blocks.
        """
        size = np.bincount(self.document, weights=self.bytes).astype(np.int64)
        if effective_clusters(size.tolist()) < FEWEST_DOCUMENTS:
            return self._blocks()
        nats = np.bincount(self.document, weights=self.paid)
        return nats.tolist(), size.tolist()

    def _blocks(self) -> tuple[list[float], list[int]]:
        ends, nats = np.cumsum(self.bytes), self.paid
        cuts = int(ends[-1]) * np.arange(BLOCKS + 1) // BLOCKS
        # A token of no bytes belongs to the block that begins where it stands; at the end of the text, to the last.
        begun = np.searchsorted(ends - self.bytes, cuts)
        begun[-1] = len(ends)
        last = np.maximum(begun - 1, 0)
        beyond = np.where(begun > 0, np.maximum(ends[last] - cuts, 0) / np.maximum(self.bytes[last], 1), 0.0)
        before = np.concatenate([[0.0], np.cumsum(nats)])[begun] - beyond * nats[last]
        return np.diff(before).tolist(), np.diff(cuts).tolist()

    def by_position(self) -> tuple[PositionPoint, ...]:
        """Bits per byte in buckets of context that double: 1, 2 to 3, 4 to 7, ..."""
        bucket = np.frexp(self.context)[1] - 1
        points = []
        for power in np.unique(bucket).tolist():
            inside = bucket == power
            size = int(self.bytes[inside].sum())
            if size:
                last = min(2 ** (power + 1) - 1, int(self.context.max()))
                points.append(PositionPoint(2**power, last, float(self.paid[inside].sum()) / math.log(2) / size,
                                            int(inside.sum())))
        return tuple(points)


def token_scores(model: LanguageModel, stream: TokenStream, context: int, step: int) -> TokenScores:
    """Score a stream in windows of ``context``, documents fenced, each token once: as `weft.evaluation.evaluate` does,
    token by token. ``step``: updates that the model has had, for the message of one that has diverged.

    Raises:
        DivergedError: the model gives NaN, or, trained by gradients, holds impossible what comes.
        FailedError: a counted one holds it impossible.
    """
    windows = EvaluationWindows(stream, context=context, rows=_rows(context))
    nats: list[np.ndarray] = []
    seen: list[np.ndarray] = []
    with evaluation_mode(model), torch.no_grad():
        for piece in window_pieces(model, windows, fenced=True, chosen=frozenset(range(len(windows)))):
            nats.append(-model.readout.log_prob(piece.h, piece.targets).double().cpu().numpy()[0])
    for batch in windows:
        seen.append(_context(batch.begins)[batch.scored])
    places = np.arange(1, len(stream))
    places = places[stream.scored(places)]
    found = TokenScores(np.concatenate(nats), stream.byte_lengths[places].astype(np.int64),
                        (np.cumsum(stream.begins) - 1)[places - 1].clip(0), np.concatenate(seen),
                        np.zeros(len(places)) if stream.lost is None else stream.lost[places].astype(np.float64))
    assert len(found.nats) == len(found.bytes) == len(found.context), "windows score every target once, in order"
    if not np.isfinite(found.nats).all():
        never = int(np.isinf(found.nats).sum())
        what = f"{never:,} tokens have probability zero under the model." if never else "the model gives NaN."
        if isinstance(model, Counted):
            raise FailedError(what, where=stream.corpus, remedy="Smooth the n-gram.")
        raise DivergedError(f"on held-out text, {what}", step=step)
    return found


def _rows(context: int) -> int:
    return max(1, BATCH_TOKENS // context)


def _context(begins: np.ndarray) -> np.ndarray:
    """Tokens of its own document, from the start of the window on, that each target [B,T] is predicted from."""
    steps = np.arange(begins.shape[1])
    last = np.maximum.accumulate(np.where(begins, steps, 0), axis=1)
    return steps - last + 1


def by_length(model: LanguageModel, stream: TokenStream, contexts: Sequence[int],
              trained: int) -> tuple[LengthPoint, ...]:
    """Windows of several lengths. A length beyond the model's reach has no figures; one beyond that of training at
    which the model gives NaN, as a recurrence may that nothing keeps stable, has infinite ones."""
    reach = model.limit()
    points = []
    for context in sorted(set(contexts)):
        bits = perplexity = None
        if reach is None or context <= reach:
            try:
                found = evaluate(model, stream, context=context, batch_size=_rows(context))
                bits, perplexity = found.bits_per_byte, found.perplexity
            except FailedError:
                if context <= trained:
                    raise
                bits = perplexity = math.inf
        points.append(LengthPoint(context, bits, perplexity, context <= trained))
    return tuple(points)


def decoding_cost(model: LanguageModel, stream: TokenStream, contexts: Sequence[int],
                  steps: int) -> tuple[DecodePoint, ...]:
    """Seconds of one token and bytes of state behind several contexts, one row, as far as the model reaches."""
    reach, points = model.limit(), []
    sizes = state_bytes(model.config, sorted(set(contexts)))
    for context, size in sizes.items():
        possible = reach is None or context + WARMING + steps <= reach
        low, seconds, high = _seconds_per_token(model, stream, context, steps) if possible else (None, None, None)
        points.append(DecodePoint(context, seconds, size, low, high))
    return tuple(points)


def _seconds_per_token(model: LanguageModel, stream: TokenStream, context: int,
                       steps: int) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of the timed tokens."""
    length = context + WARMING + steps
    tokens = np.resize(stream.tokens[:length], length).astype(np.int64)
    times: list[float] = []
    with evaluation_mode(model):
        rows = prepare(model, [Row(tuple(tokens[:context].tolist()))], max_new_tokens=WARMING + steps + 1, start=None)
        session = Session(model, rows, max_new_tokens=WARMING + steps + 1)
        for token in tokens[context:].tolist():
            begun = time.perf_counter()
            session.advance(torch.tensor([token], device=session.device))
            session.logits.sum().item()  # on an accelerator, wait for the work
            times.append(time.perf_counter() - begun)
    low, middle, high = np.quantile(times[WARMING:], [0.25, 0.5, 0.75]).tolist()
    return low, middle, high


def sample(model: LanguageModel, tokenizer: Tokenizer, stream: TokenStream, settings: MeasureSettings) -> Sample:
    """The continuation of the study's prompt, which by default is how the test text begins."""
    prompt = settings.prompt
    if prompt is None:
        prompt = " ".join(tokenizer.decode(stream.tokens[1:200].astype(np.int64).tolist()).split(" ")[:12])
    start = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
    ids = (*([] if start is None else [start]), *tokenizer.encode(prompt))
    how = Sampling(temperature=settings.temperature, top_p=settings.top_p if settings.temperature else None)
    words = (f"temperature {settings.temperature:g}, top-p {settings.top_p:g}" if settings.temperature
             else "the most probable token each time")
    described = f"{words}, {settings.new_tokens} tokens, seed {settings.sample_seed}"
    try:
        made = generate(model, [Row(ids)], max_new_tokens=settings.new_tokens, sampling=how, tokenizer=tokenizer,
                        start=start, seed=settings.sample_seed)
    except UserError as error:
        return Sample(prompt, "", f"no sample: {error}")
    return Sample(prompt, made.rows[0].text or "", described)


def forget_peak() -> None:
    """Begin anew, where the system can (Linux): what reading the text took is then not counted."""
    try:
        RESET.write_text("5")
    except OSError:
        return


def peak_memory_bytes() -> int:
    """Resident memory at its highest since `forget_peak`, or since the process began where that is impossible."""
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return 0
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
