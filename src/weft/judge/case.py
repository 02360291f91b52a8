"""A case: the processes of what is judged, how its output is read, and the rows that it is asked about."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from weft.judge.questions import EndedError, FileLimits, Judged, ModelError, Surroundings, Worker, elsewhere, output_of
from weft.judge.sample import SAMPLE

LENGTHS = (64, 256, 1024, 2048, 4096)
"""Tokens of rows that are tried until one takes too long: look-ahead may begin behind any border of a power of two."""
SLOW = 4.0
"""Seconds of one row from which on no longer one is tried."""
CLIPPED = -80.0
"""Log-probabilities below are as good as zero; rounding of such values says nothing."""
NUMBERS = 1 << 20
"""The most numbers of an answer that are compared at once; of larger ones some positions are."""
SMALL = 200_000_000
"""Parameters of a model up to which there is a process for `Case.beside`."""
GIVES = ("logits", "log-probabilities", "next", "scores")
NUMBER = "a whole number above 1"


class UnsteadyError(Exception):
    """The same question has had two answers, so that a difference shows nothing."""


class NotJudgedError(Exception):
    """Nothing can be said of the model; the message is the reason."""


@dataclass(frozen=True)
class OutputForm:
    """One of the ways in which a model gives probabilities.

    Attributes:
        how: the call: ``model``, or ``score`` for the file's own scorer.
        gives: how its output is read, one of `GIVES`, or ``next log-probabilities``.
        vocab: the number of ids that it gives probabilities for; of ``scores`` what is stated.
    """

    how: str
    gives: str
    vocab: int

    @property
    def scores(self) -> bool:
        """Whether it gives a log-probability for each token of the row, and no distribution."""
        return self.gives == "scores"


@final
class Case:
    """A judged file: its processes and views.

    Args:
        judged: the file.
        gives: how its output is read; None: worked out.
        limits: of its processes.
        texts: what it must not have read, see `text`.
    """

    def __init__(self, judged: Judged, gives: str | None, limits: FileLimits, texts: Mapping[str, Path]) -> None:
        self.limits, self.judged, self._texts = limits, judged, texts
        self._until = time.monotonic() + limits.seconds
        self.worker, self.other = self.process(), self.process(elsewhere(Surroundings()))
        self.further = self.other
        try:
            self._learn(gives)
        except BaseException:
            self.end()
            raise

    def _learn(self, gives: str | None) -> None:
        """Ask the file what it is and how its output is read."""
        self.about = self.worker.begin()
        self.small = self.about["parameters"] <= SMALL
        if self.small:
            self.further = self.process()
        self.stated: dict[str, Any] = self.about["stated"]
        for name, expected in {"vocab_size": NUMBER, "context": NUMBER, "claims": "a dictionary"}.items():
            value = self.stated.get(name)
            right = isinstance(value, int) and value > 1 if expected is NUMBER else isinstance(value, dict)
            if not (value is None or right):
                raise NotJudgedError(f"it states {name} = {value!r}, where {expected} was expected.")
        self.offered: list[str] = self.about["offered"]
        self.low = any("16" in each for each in self.about["dtypes"])
        self.scale, self.changes_input = 1.0, False
        self.vocab = self._vocabulary()
        self.views = [self._view("model", gives or self.stated.get("gives"))]
        if "score" in self.offered:
            self.views.append(OutputForm("score", "scores", self.vocab))
        self.length, self.why_length = self._longest()

    @property
    def allowed(self) -> float:
        """The difference of log-probabilities that rounding explains: matrix kernels sum in another order for another
        number of rows, which in float32 is some 1e-6 of the size of logits for a layer, and a stranger's model has
        dozens. 16-bit numbers have 3e-3 of their size. What is below changes no figure that anybody quotes."""
        return (5e-2 if self.low else 1e-4) * min(max(1.0, self.scale), 50.0)

    @property
    def floor(self) -> float:
        """The difference of probabilities below which logarithms are not compared: what is left of 1 after a
        subtraction in float32."""
        return 1e-3 if self.low else 1e-7

    def text(self, name: str) -> Path | None:
        """A file that was given as ``test_text``, ``fresh_text`` or ``canaries``, or else one beside the judged file
        that its claims name; None."""
        claimed = (self.stated.get("claims") or {}).get(name)
        return self._texts.get(name) or (self.judged.path.parent / claimed if isinstance(claimed, str) else None)

    def left(self) -> float:
        """Seconds that are left."""
        return self._until - time.monotonic()

    def process(self, world: Surroundings | None = None) -> Worker:
        """A new process of the file, which loads it by itself."""
        return Worker(self.judged, self.limits, world or Surroundings(), self._until)

    def again(self) -> None:
        """Begin a new process in the place of one that has ended."""
        self.worker.end()
        if self.left() <= 0:
            raise EndedError("the time for the verdict was up")
        self.worker = self.process()
        self.worker.begin()

    def end(self) -> None:
        """End the processes."""
        for each in (self.worker, self.other, self.further):
            each.end()

    def of(self, worker: Worker) -> Case:
        """The same case with another process."""
        case = copy(self)
        case.worker = worker
        return case

    @contextmanager
    def beside(self, worker: Worker) -> Iterator[Case]:
        """The same case with a process that is ended with it, and that another thread may ask."""
        case = self.of(worker)
        try:
            yield case
        finally:
            case._until = 0.0  # so that none is begun in its place
            case.worker.end()

    def raw(self, view: OutputForm, rows: np.ndarray, positions: Sequence[int] | None = None, times: int = 1
            ) -> np.ndarray:
        """The output of a call for rows [B,T], at some positions."""
        asked = None if positions is None else [int(each) for each in positions]
        message, arrays = self.worker.ask("values", rows, how=view.how, times=times, positions=asked)
        self.changes_input |= bool(message.get("changed"))
        self.low |= bool(message.get("low"))
        return output_of(arrays)

    def log_probs(self, view: OutputForm, rows: np.ndarray, positions: Sequence[int] | None = None) -> np.ndarray:
        """Log-probabilities in nats: [B,P,V], at each position those of the next token; of scores [B,P], at each
        position that of the token there. In float64, clipped at `CLIPPED`.

        Raises:
            EndedError: the output has another shape than before.
        """
        places = list(range(rows.shape[1])) if positions is None else list(positions)
        if view.gives.startswith("next"):
            each = [self.raw(view, rows[:, : at + 1]).reshape(len(rows), 1, -1) for at in places]
            values = np.concatenate(each, axis=1).astype(float)
        else:
            values = self.raw(view, rows, places).astype(float)
        shape = (len(rows), len(places)) if view.scores else (len(rows), len(places), view.vocab)
        if values.shape != shape:
            raise EndedError(f"it returned an array of shape {list(values.shape)} where {list(shape)} was expected")
        if view.gives in ("logits", "next"):
            values = self.normalised(values)
        return np.where(np.isnan(values), np.nan, np.maximum(values, CLIPPED))

    def require_steady(self, view: OutputForm, rows: np.ndarray, places: Sequence[int], before: np.ndarray) -> None:
        """Ask about rows again before a difference is held against anything else.

        Raises:
            UnsteadyError: the answer is another one.
        """
        if first_difference(self, before, self.log_probs(view, rows, places)):
            raise UnsteadyError("the same rows have another output when they are asked again (see repeats)")

    def normalised(self, values: np.ndarray) -> np.ndarray:
        """Logits [...,V] as log-probabilities."""
        with np.errstate(all="ignore"):
            top = values.max(axis=-1, keepdims=True)
            finite = values[np.isfinite(values)]
            if finite.size:
                self.scale = max(self.scale, float(np.abs(finite - finite.mean()).max()))
            total: np.ndarray = np.exp(values - top).sum(axis=-1, keepdims=True)
            normalised: np.ndarray = values - top - np.log(total)
            return normalised

    def places(self, view: OutputForm, length: int, rows: int, near: Sequence[int] = ()) -> list[int]:
        """The positions of a row at which outputs are compared: all, or, of large vocabularies, those before ``near``
        and some others."""
        most = NUMBERS // (rows * (1 if view.scores else view.vocab))
        most = min(most, 64) if view.gives.startswith("next") else most
        if length <= most:
            return list(range(length))
        close = {at - back for at in near for back in (1, 2, 3, 4, 8, 16, 64) if 0 <= at - back < length}
        spread = np.linspace(0, length - 1, max(most - len(close), 4)).astype(int)
        return sorted(close | set(spread.tolist()))

    def rows(self, count: int, length: int, seed: int) -> np.ndarray:
        """Rows of ids [B,T] of several kinds in turns: random ones, a repeated motif, few different ids, and text."""
        draw = np.random.default_rng([seed, count, length])
        kinds: list[Callable[[], np.ndarray]] = [
            lambda: draw.integers(0, self.vocab, length),
            lambda: np.resize(draw.integers(0, self.vocab, int(draw.integers(2, 18))), length),
            lambda: self._text(draw, length),
            lambda: draw.choice(draw.integers(0, self.vocab, 4), length)]
        return np.stack([kinds[index % 4]() for index in range(count)]).astype(np.int64)

    def _text(self, draw: np.random.Generator, length: int) -> np.ndarray:
        """Bytes of a text, as ids that the vocabulary has."""
        ids = np.frombuffer(SAMPLE.encode(), np.uint8).astype(np.int64) % self.vocab
        return np.resize(np.roll(ids, -int(draw.integers(0, len(ids)))), length)

    def _vocabulary(self) -> int:
        if stated := self.stated.get("vocab_size"):
            return int(stated)
        shape = self._shape(np.zeros((2, 7), np.int64))
        if len(shape) < 2 or (len(shape) == 2 and shape[1] == 7):
            raise NotJudgedError("the number of its ids is not known: state vocab_size in the file.")
        return shape[-1]

    def _shape(self, rows: np.ndarray) -> list[int]:
        try:
            message, _ = self.worker.ask("values", rows, how="model", times=1, positions=None)
        except ModelError as error:
            raise NotJudgedError(f"it cannot be asked about rows of {rows.shape[1]} ids: {error}.") from None
        return [int(each) for each in message["shape"]]

    def _view(self, how: str, gives: str | None) -> OutputForm:
        """How the output of a call is read."""
        if gives is not None and gives not in GIVES:
            raise NotJudgedError(f"it states gives = {gives!r}, which is none of {', '.join(GIVES)}.")
        rows = self.rows(2, 7, 0)
        short, long = self._shape(rows[:, :5]), self._shape(rows)
        if long[0] != 2 or not 2 <= len(long) <= 3:
            raise NotJudgedError(f"for 2 rows of 7 ids it returns an array of shape {long}, where [2,7,V], [2,1,V], "
                                 "[2,V] or [2,7] was expected.")
        if len(long) == 2 and (short[1], long[1]) == (5, 7):
            if gives not in (None, "scores"):
                raise NotJudgedError(f"it states gives = {gives!r} and returns one number for each token.")
            if self.stated.get("vocab_size") is None:
                raise NotJudgedError("it gives scores, and the number of its ids is not known: state vocab_size.")
            return OutputForm(how, "scores", self.vocab)
        last = len(long) == 2 or long[1] == 1
        if not last and long[1] != 7:
            raise NotJudgedError(f"for 2 rows of 7 ids it returns an array of shape {long}.")
        self.vocab = min(self.vocab, long[-1])
        values = np.asarray(self.raw(OutputForm(how, "logits", long[-1]), self.rows(8, 7, 1)), float)
        function = self.about["function"]
        logs = gives == "log-probabilities" or (gives in (None, "next") and are_log_probabilities(values, function))
        if last:
            return OutputForm(how, "next log-probabilities" if logs else "next", long[-1])
        return OutputForm(how, "log-probabilities" if logs else "logits", long[-1])

    def _longest(self) -> tuple[int, str]:
        """The length of the longest rows that are asked for, and why none longer is."""
        context = self.stated.get("context") or 0
        most, reached = min(context or LENGTHS[-1], LENGTHS[-1]), 7
        for length in [each for each in LENGTHS if each < most] + [most]:
            begun = time.monotonic()
            try:
                self.log_probs(self.views[0], self.rows(1, length, 2), [length - 1])
            except ModelError as error:
                why = f"rows of {length:,} tokens end in an error ({error})"
                if context:
                    raise NotJudgedError(f"it states context = {context}, and {why}.") from None
                return reached, why
            taken = time.monotonic() - begun
            reached = length
            if taken > SLOW:
                return reached, f"a row of {length:,} tokens takes {taken:.1f} seconds"
        return reached, ""


def are_log_probabilities(values: np.ndarray, function: bool) -> bool:
    """Whether values [...,V] are logarithms of probabilities.

    Args:
        function: whether a function gives them, of which log-probabilities are expected rather than logits.

    Raises:
        NotJudgedError: they may be, but sum to one nowhere.
    """
    with np.errstate(all="ignore"):
        total = np.log(np.exp(values).sum(axis=-1))
    ones = float((np.abs(total) < 1e-3).mean())
    if ones >= 0.25:
        return True
    if (values >= 0).all() and np.allclose(values.sum(axis=-1), 1, atol=1e-3):
        raise NotJudgedError("it returns probabilities: return their logarithms.")
    if ((values <= 0).all() or function) and float(np.abs(total).max()) < math.log(1000):
        raise NotJudgedError("the exponentials of its values sum to one nowhere: are they logits, or log-probabilities "
                             "that are wrong? State gives = \"logits\" or \"log-probabilities\" in the file, or give "
                             "--gives.")
    return False


def first_difference(case: Case, expected: np.ndarray, got: np.ndarray) -> tuple[int, int, float] | None:
    """The row, the place and the size in nats of the first difference between log-probabilities [B,P,...] that rounding
    does not explain; None if there is none."""
    with np.errstate(all="ignore"):
        gap = np.abs(expected - got)
        gap = np.where((gap <= case.allowed) | (np.abs(np.exp(expected) - np.exp(got)) <= case.floor), 0.0, gap)
    gap = np.where(np.isnan(expected) & np.isnan(got), 0.0, np.where(np.isnan(gap), np.inf, gap))
    gap = gap.reshape(*gap.shape[:2], -1).max(axis=-1) if gap.size else np.zeros((1, 1))
    rows, places = np.nonzero(gap)
    if not rows.size:
        return None
    first = int(np.argmin(places))
    return int(rows[first]), int(places[first]), float(gap[rows[first], places[first]])


def smallest(case: Case, pair: np.ndarray, shows: Callable[[np.ndarray], bool], asks: int = 24) -> np.ndarray:
    """Rows of ids [R,T] without the tokens at either end that are not needed to show what they show, by halving.

    Args:
        pair: the rows, which stay of one length.
        shows: whether shorter ones show it still.
        asks: the most that are tried.
    """
    for front in (True, False):
        cut = pair.shape[1] // 2
        while cut and asks and case.left() > 0:
            shorter = pair[:, cut:] if front else pair[:, : pair.shape[1] - cut]
            asks -= 1
            if shorter.shape[1] > 1 and shows(shorter):
                pair = shorter
                cut = min(cut, pair.shape[1] // 2)
            else:
                cut //= 2
    return pair
