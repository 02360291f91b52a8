"""BLEU by the package ``sacrebleu``, with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from weft.core.errors import InputError, MissingExtra
from weft.core.strict_json import Record

RESAMPLES = 1000
COVERED = 0.95
ORDERS = 4


@dataclass(frozen=True)
class Bleu(Record):
    """BLEU of a set of translations (Papineni et al. 2002), with one reference each.

    Attributes:
        score: from 0 to 100.
        low: lower end of the interval that holds 95 % of the scores of resampled sets of sentences.
        sentences: translations that were compared.
        resamples: sets of as many sentences, drawn with replacement (Koehn 2004, section 3).
        signature: sacrebleu's description of how it was computed (Post 2018), to be quoted with the score.
    """

    score: float
    low: float
    high: float
    sentences: int
    resamples: int
    signature: str

    def line(self) -> str:
        """The score with its interval, and the signature."""
        return (f"BLEU {self.score:.2f} [{self.low:.2f}, {self.high:.2f}] (95% of {self.resamples:,} resamples of "
                f"{self.sentences:,} sentences)  {self.signature}")


def bleu(translations: Sequence[str], references: Sequence[str], *, resamples: int = RESAMPLES, seed: int = 0) -> Bleu:
    """BLEU of ``translations``, in sacrebleu's usual settings: its tokenisation ``13a``, case kept, smoothing ``exp``.

    Args:
        translations: plain text, not tokenised.
        resamples: sets of sentences for the interval.
        seed: of the random choice of these sets.

    Raises:
        MissingExtra: ``sacrebleu`` is not installed.
        InputError: there are no translations, or not one reference for each.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise MissingExtra("sacrebleu", "bleu", "BLEU") from None
    if not translations or len(translations) != len(references):
        raise InputError(f"{len(translations)} translations for {len(references)} references.", where="translations",
                         remedy="Give one for each reference, and at least one.")
    metric = BLEU()
    whole = metric.corpus_score(list(translations), [list(references)])
    signature = str(metric.get_signature())
    counts = np.array([_counts(metric.corpus_score([mine], [[its]]))
                       for mine, its in zip(translations, references, strict=True)], dtype=np.int64)
    chosen = np.random.default_rng(seed).integers(len(counts), size=(resamples, len(counts)))
    found = [_score(counts[rows].sum(0)) for rows in chosen]
    low, high = np.quantile(found, [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return Bleu(float(whole.score), float(low), float(high), len(counts), resamples, signature)


def _counts(score: Any) -> list[int]:
    """The counts on which the score of a set of sentences depends, which are added over sentences: n-grams that match,
    n-grams, and the lengths of translation and reference."""
    return [*score.counts, *score.totals, score.sys_len, score.ref_len]


def _score(sums: Int64[np.ndarray, " counts"]) -> float:
    from sacrebleu.metrics.bleu import BLEU

    matched, total, (length, reference) = sums[:ORDERS], sums[ORDERS:2 * ORDERS], sums[2 * ORDERS:].tolist()
    found = BLEU.compute_bleu(matched.tolist(), total.tolist(), length, reference, smooth_method="exp",
                              max_ngram_order=ORDERS)
    return float(found.score)
