"""BLEU against a plain count of n-grams, and its interval."""

from __future__ import annotations

import math
import sys
from collections import Counter

import numpy as np
import pytest

from weft.core.errors import InputError, MissingExtra
from weft.evaluation.bleu import bleu

MINE = ["the cat sat on the mat today", "hello there you all", "a dog runs over a field of grass", "two men talk here"]
ITS = ["the cat sat on a mat today", "hello there all of you", "a dog runs over a field of green grass",
       "two men are talking here"]


def plain(pairs: list[tuple[str, str]]) -> float:
    """Papineni et al. 2002, equations 1 to 3, of texts in which spaces divide words, with sacrebleu's smoothing: the
    n-th precision without a match is 1 / (2^k count), k counting such precisions."""
    matched, total, mine, its, empty = [0] * 4, [0] * 4, 0, 0, 1
    for hypothesis, reference in ((a.split(), b.split()) for a, b in pairs):
        mine, its = mine + len(hypothesis), its + len(reference)
        for n in range(4):
            grams = [Counter(tuple(words[i:i + n + 1]) for i in range(len(words) - n)) for words in (hypothesis,
                                                                                                   reference)]
            matched[n] += sum((grams[0] & grams[1]).values())
            total[n] += sum(grams[0].values())
    logs = 0.0
    for hit, count in zip(matched, total, strict=True):
        if not hit:
            empty *= 2
        logs += math.log(hit / count if hit else 1 / (empty * count)) / 4
    return 100 * math.exp(min(0.0, 1 - its / mine) + logs)


def test_it_is_the_geometric_mean_of_precisions_with_a_penalty_for_short_translations() -> None:
    found = bleu(MINE, ITS, resamples=200)
    assert found.score == pytest.approx(plain(list(zip(MINE, ITS, strict=True))), rel=1e-9)
    assert found.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert found.sentences == 4 and found.resamples == 200
    assert f"BLEU {found.score:.2f} [{found.low:.2f}, {found.high:.2f}] (95% of 200 resamples of 4 sentences)" in \
        found.line()


def test_the_interval_is_that_of_resampled_sentences() -> None:
    """All 256 samples of four sentences, each equally likely, against 4,000 that are drawn."""
    pairs = list(zip(MINE, ITS, strict=True))
    every = np.sort([plain([pairs[i // 4**place % 4] for place in range(4)]) for i in range(256)])
    found = bleu(MINE, ITS, resamples=4000)
    assert found.low == pytest.approx(np.quantile(every, 0.025), abs=1.5)
    assert found.high == pytest.approx(np.quantile(every, 0.975), abs=1.5)
    assert found.low < found.score < found.high
    drawn = [plain([pairs[i] for i in rows]) for rows in np.random.default_rng(5).integers(4, size=(300, 4)).tolist()]
    few = bleu(MINE, ITS, resamples=300, seed=5)
    assert [few.low, few.high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist(), rel=1e-9)
    assert bleu(MINE, ITS, resamples=50, seed=1) == bleu(MINE, ITS, resamples=50, seed=1)
    assert bleu(MINE, ITS, resamples=50, seed=1) != bleu(MINE, ITS, resamples=50, seed=2)


def test_one_sentence_has_one_score_however_it_is_resampled() -> None:
    """Its 4-grams do not match, so that smoothing shows."""
    found = bleu(MINE[3:], ITS[3:], resamples=3)
    assert found.low == pytest.approx(found.score) and found.high == pytest.approx(found.score)
    assert found.score == pytest.approx(plain([(MINE[3], ITS[3])]), rel=1e-9)


def test_equal_texts_have_100() -> None:
    found = bleu(ITS, ITS, resamples=20)
    assert found.score == pytest.approx(100) and found.low == pytest.approx(100)


def test_what_cannot_be_compared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"translations: 1 translations for 4 references\. Give one for each"):
        bleu(MINE[:1], ITS)
    with pytest.raises(InputError, match=r"translations: 0 translations for 0 references"):
        bleu([], [])
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(MissingExtra, match=r"BLEU needs the package 'sacrebleu'.*pip install 'weft\[bleu\]'"):
        bleu(MINE, ITS)
