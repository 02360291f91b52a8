"""The law ``fresh-text``: the test text is predicted no better than a text of the same kind that nobody can have read,
beyond what their difficulty explains.

Both texts are documents. The difficulty of each is what Weft's own n-gram model needs for it that was estimated from
the other documents of both; a straight line through all documents says how much of the judged model's bits per byte
that explains. What is left is compared by Welch's t, whose p-value is the share of 9,999 random divisions of the same
documents that have at least as large a t. If documents were divided between both texts by chance, a model that has read
neither is accused with the probability `LEVEL` at most, whatever it is. Zhang et al. 2024 (GSM1k) compare a public test
with a newly written one; Oren et al. 2024 permute the order of the examples of a public one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from weft.comparison.student import t_quantile
from weft.core.errors import DataError, InputError
from weft.data.text import read_text
from weft.judge.canaries import LEVEL, Bits
from weft.judge.judgement import Found, LawResult, result
from weft.ngram import count_ngrams, modified_kneser_ney

NAME = "fresh-text"
LEAST, MOST = 12, 60
"""Documents of each text that are needed, and that are asked about at most: a sample of more."""
SHORTEST, LONGEST = 200, 1_500
"""Bytes of a document that are needed, and that are read at most."""
MARGIN = 0.02
"""The share of its bits per byte by which a model may need less for the test text: texts that were not divided by
chance differ by some hundredths in what no n-gram model sees."""
POWER, UNLIKE = 0.2, 1.0
"""The share of its bits per byte that a test must be able to find, at a power of 0.8; and the difference of
difficulties, in standard deviations of documents, from which on two texts are not of one kind."""
DIVISIONS, FOLDS, ORDER = 9_999, 5, 4


def read_documents(path: Path) -> tuple[str, ...]:
    """The documents of a folder of texts or of a file of records, those of `SHORTEST` bytes or more, cut to `LONGEST`;
    of more than `MOST` a sample, which is always the same.

    Raises:
        InputError: they cannot be read, or are too few to compare.
    """
    remedy = "Give a folder with a text in each file, or JSON Lines with a text in each record."
    try:
        texts = [each.text.encode() for each in read_text(path).documents]
    except DataError as error:
        raise InputError(f"no documents can be read ({error}).", where=str(path), remedy=remedy) from None
    long = [each[:LONGEST].decode(errors="ignore") for each in texts if len(each) >= SHORTEST]
    if len(long) < LEAST:
        raise InputError(f"{len(long)} documents of {SHORTEST} bytes or more, where {LEAST} are needed to tell a model "
                         "that has read them from chance.", where=str(path), remedy=remedy)
    return tuple(long if len(long) <= MOST else random.Random(0).sample(long, MOST))


def compared(bits: Bits, test: Sequence[str], fresh: Sequence[str]) -> LawResult:
    """The law for a model.

    Args:
        bits: of texts by the model.
        test: the documents of the test text.
        fresh: documents of the same kind that cannot have been read.
    """
    texts, of_test = (*test, *fresh), np.arange(len(test) + len(fresh)) < len(test)
    sizes = np.array([len(each.encode()) for each in texts])
    needed, hard = np.array(bits(texts)) / sizes, difficulty(texts)
    if not np.isfinite(needed).all():
        return LawResult(name=NAME, outcome="not tried", why="its ids do not hold the texts' characters")
    own, other = float(needed[of_test].mean()), float(needed[~of_test].mean())
    unlike = abs(float(hard[of_test].mean() - hard[~of_test].mean())) / max(float(hard.std()), 1e-9)
    tried = (f"{len(test)} documents of the test text against {len(fresh)} fresh ones, by bits per byte beyond what an "
             "n-gram model of the other documents explains")
    if unlike > UNLIKE:
        return LawResult(name=NAME, outcome="not tried", tried=tried, why="the texts are not of one kind: in what an "
                         f"n-gram model needs they differ by {unlike:.1f} standard deviations of documents")
    left = needed - hard * float(np.cov(hard, needed)[0, 1]) / max(float(hard.var(ddof=1)), 1e-9)
    gain, error, freedom = _welch(left, of_test[None])
    gap, half = float(gain[0]), t_quantile(1 - LEVEL, float(freedom[0])) * float(error[0])
    margin, p = MARGIN * other, p_value(left + MARGIN * other * of_test, of_test)
    finds = margin + half + t_quantile(0.8, float(freedom[0])) * float(error[0])
    figures = {"p": p, "level": LEVEL, "test_bits_per_byte": own, "fresh_bits_per_byte": other, "gain": gap,
               "low": gap - half, "high": gap + half, "finds": finds}
    said = (f"it needs {own:.3f} bits per byte for the test text and {other:.3f} for the fresh one, {abs(gap):.3f} "
            f"{'less' if gap > 0 else 'more'} beyond their difficulty ({100 * (1 - 2 * LEVEL):.4g} % interval "
            f"{gap - half:.3f} to {gap + half:.3f}; p = {p:.2g} of more than {margin:.3f})")
    if p > LEVEL and finds > POWER * other:
        return LawResult(name=NAME, outcome="not tried", tried=tried, figures=figures, why=f"{said}; the documents are "
                         f"too few or too unlike: they would show a difference of {finds:.3f} or more")
    found = None if p > LEVEL else Found(
        sentence=f"{said[0].upper()}{said[1:]}: it has read the test text, or texts that are closer to it than the "
        "fresh one is.", measured=gap, allowed=margin, resembles="trained_on_test")
    return result(NAME, tried, found, f"{said}; {finds:.3f} or more would be found", **figures)


def difficulty(texts: Sequence[str]) -> np.ndarray:
    """The bits per byte of each text by a modified Kneser-Ney model of the texts of the other folds. Which text is in
    which fold is drawn without regard to whose it is."""
    folds = np.random.default_rng(0).permutation(len(texts)) % FOLDS
    ids = [np.frombuffer(each.encode(), np.uint8).astype(np.int64) for each in texts]
    found = np.zeros(len(texts))
    for fold in range(FOLDS):
        others = [each for each, of in zip(ids, folds, strict=True) if of != fold]
        begins = np.concatenate([np.arange(len(each)) == 0 for each in others])
        table = modified_kneser_ney(count_ngrams(np.concatenate(others), begins, order=ORDER, vocab_size=256))
        for at in np.flatnonzero(folds == fold):
            padded = np.concatenate([np.full(ORDER - 1, 256), ids[at]])  # 256 begins a document
            contexts = np.lib.stride_tricks.sliding_window_view(padded, ORDER - 1)[:-1]
            found[at] = -float(table.log_prob(contexts, ids[at]).mean()) / math.log(2)
    return found


def p_value(values: np.ndarray, of_test: np.ndarray) -> float:
    """The share of random divisions [N] of values [N] whose t is as large as that of ``of_test``, which counts too."""
    draw = np.random.default_rng(1)
    divisions = np.stack([of_test, *(draw.permutation(of_test) for _ in range(DIVISIONS))])
    gain, error, _ = _welch(values, divisions)
    t = gain / np.maximum(error, 1e-12)
    return float((t >= t[0] - 1e-9).mean())


def _welch(values: np.ndarray, divisions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each division [P,N] of values [N]: the mean of those outside minus that of those inside, its standard error,
    and Welch's degrees of freedom."""
    sides = []
    for chosen in (divisions, ~divisions):
        count = chosen.sum(axis=1)
        mean = chosen @ values / count
        square = np.maximum(chosen @ values**2 / count - mean**2, 1e-18) / (count - 1)
        sides.append((mean, square, count))
    (inside, one, n), (outside, two, m) = sides
    freedom = (one + two) ** 2 / (one**2 / (n - 1) + two**2 / (m - 1))
    return outside - inside, np.sqrt(one + two), freedom
