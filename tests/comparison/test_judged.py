"""What is concluded from the runs of a study, and that it follows from its JSON alone."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from comparison.entries import CLUSTER, entry, result_of
from comparison.report.fixture import study
from weft.comparison.folder import read_result, rerender
from weft.comparison.measures import TokenScores, by_length
from weft.comparison.results import LengthPoint, StudyModel
from weft.comparison.student import SeedTest
from weft.comparison.study_result import Difference, StudyResult
from weft.comparison.verdict import disagreement, judged
from weft.core.errors import CheckpointError, FailedError
from weft.core.model import LanguageModel, parse_model
from weft.core.strict_json import dumps
from weft.data import encode_corpus, read_text
from weft.mixers.linear_ssm import LinearSSM
from weft.tokenizers import ByteTokenizer

TESTS: tuple[SeedTest, ...] = ("welch", "paired")


def model(name: str, mean: float, seed: int, runs: int = 4, common: int | None = None) -> StudyModel:
    """Runs of 40 clusters around ``mean`` nats; those with the same ``common`` share what varies from run to run."""
    own, shared = np.random.default_rng(seed), np.random.default_rng(common if common is not None else seed + 1000)
    return entry(name, [own.normal(mean + shared.normal(0, 0.1), 1.0, 40) for _ in range(runs)])


def bits(found: StudyModel) -> list[float]:
    return [each.bits_per_byte for each in found.finished if each.bits_per_byte is not None]


def pair_of(result: StudyResult) -> Difference:
    pair, = result.differences
    return pair


@pytest.mark.parametrize("test", TESTS)
def test_the_interval_over_seeds_and_its_error_are_those_of_scipy(test: SeedTest) -> None:
    a, b = model("a", 100.0, 0, common=7), model("b", 100.3, 1, common=7)
    pair = pair_of(result_of([a, b], test))
    expected = stats.ttest_rel(bits(a), bits(b)) if test == "paired" else stats.ttest_ind(bits(a), bits(b),
                                                                                          equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert (pair.over_seeds.low, pair.over_seeds.high) == (pytest.approx(low), pytest.approx(high))
    assert pair.over_seeds.mean == pytest.approx(np.mean(bits(a)) - np.mean(bits(b)))
    assert pair.seed_error == pytest.approx(pair.over_seeds.mean / expected.statistic)


def test_both_errors_are_of_the_same_difference_of_means() -> None:
    """Documents that differ between the models by a known spread, and runs that differ by a known one."""
    draws = np.random.default_rng(3)
    text, own = draws.normal(0, 5.0, 400), draws.normal(0, 2.0, 400)
    runs = [[100 + text + draws.normal(0, 0.3) for _ in range(40)] for _ in range(2)]
    pair = pair_of(result_of([entry("a", [each + own for each in runs[0]]), entry("b", runs[1])], resamples=4000))
    scale = CLUSTER * math.log(2)
    # Four times what 78 degrees of freedom leave open, 8%, and what 4,000 resamples do, 1.1%.
    assert pair.seed_error == pytest.approx(0.3 * math.sqrt(2 / 40) / scale, rel=0.32)
    assert pair.document_error == pytest.approx(float(own.std(ddof=1)) / math.sqrt(400) / scale, rel=0.05)
    assert pair.over_documents.mean == pytest.approx(pair.over_seeds.mean)


def test_welch_takes_all_finished_runs_and_the_paired_test_those_that_both_finished() -> None:
    good, bad = model("good", 100.0, 0), model("bad", 120.0, 1)
    broken = dataclasses.replace(bad, runs=(dataclasses.replace(bad.runs[0], status="diverged", bits_per_byte=None,
                                                                document_nats=()), *bad.runs[1:]))
    for test, ours in (("welch", bits(good)), ("paired", bits(good)[1:])):
        pair = pair_of(result_of([good, broken], test))
        assert pair.over_seeds.mean == pytest.approx(np.mean(ours) - np.mean(bits(bad)[1:]))
        assert not pair.tied and pair.over_documents.high is not None and pair.over_documents.high < 0
    assert result_of([good, entry("none", [None] * 4)]).differences == ()
    assert result_of([good, entry("none", [None] * 4)]).tied_sets == (("good",),)


def test_models_without_a_shared_run_are_compared_by_welch_alone() -> None:
    a, b = model("a", 100.0, 0), model("b", 120.0, 1)
    first = dataclasses.replace(a, runs=a.runs[:2])
    last = dataclasses.replace(b, runs=b.runs[2:])
    assert result_of([first, last], "paired").differences == ()
    assert result_of([first, last], "paired").tied_sets == (("a", "b"),), "not compared is not told apart"
    assert not pair_of(result_of([first, last], "welch")).tied


def test_both_doubts_decide_together_and_holm_corrects_it() -> None:
    result = result_of([model("a", 100.0, 0), model("b", 100.1, 1), model("c", 120.0, 2)], resamples=1000)
    assert [pair.tied for pair in result.differences] == [True, False, False]
    for pair, (first, second) in zip(result.differences, ((0, 1), (0, 2), (1, 2)), strict=True):
        ours, theirs = bits(result.entries[first]), bits(result.entries[second])
        runs = stats.ttest_ind(ours, theirs, equal_var=False)
        assert pair.seed_error is not None and pair.over_both.high is not None and pair.p_value is not None
        error = math.hypot(pair.seed_error, pair.document_error)
        share, far = (pair.seed_error / error) ** 2, abs(pair.over_both.mean) / error
        assert pair.p_value == pytest.approx(2 * (share * stats.t.sf(far, runs.df)
                                                  + (1 - share) * stats.t.sf(far, 39)), rel=1e-6)
        half = (pair.over_both.high - pair.over_both.mean) / error
        assert share * stats.t.cdf(half, runs.df) + (1 - share) * stats.t.cdf(half, 39) == pytest.approx(0.975)
    ordered = sorted(result.differences, key=lambda pair: pair.p_value or 0.0)
    steps = [(3 - place) * (pair.p_value or 0.0) for place, pair in enumerate(ordered)]
    assert [pair.p_holm for pair in ordered] == [pytest.approx(min(1.0, max(steps[:place + 1])))
                                                 for place in range(3)]
    assert result.tied_sets in ((("a", "b"), ("c",)), (("b", "a"), ("c",)))


@pytest.mark.parametrize("test", TESTS)
def test_single_runs_are_not_told_apart(test: SeedTest) -> None:
    pair = pair_of(result_of([model("a", 100.0, 0, runs=1), model("b", 150.0, 1, runs=1)], test))
    assert (pair.over_seeds.low, pair.seed_error, pair.p_value, pair.p_holm) == (None, None, None, None)
    assert pair.tied


@pytest.mark.parametrize("test", TESTS)
def test_runs_that_agree_in_every_document_are_tied_exactly(test: SeedTest) -> None:
    same = model("a", 100.0, 0)
    pair = pair_of(result_of([same, dataclasses.replace(same, name="b")], test))
    assert (pair.over_seeds.mean, pair.over_documents.low, pair.over_documents.high) == (0.0, 0.0, 0.0)
    assert (pair.p_value, pair.p_holm, pair.tied, pair.crosses, pair.document_error) == (1.0, 1.0, True, False, 0.0)


def test_gaps_are_by_the_studys_test_and_a_counted_model_has_none() -> None:
    a, b = model("a", 100.0, 0, common=5), model("b", 100.4, 1, common=5)
    for test in TESTS:
        pair = pair_of(result_of([a, b], test))
        assert [gap.share for gap in pair.gaps] == [place / 10 for place in range(1, 11)]
        # The curves of these models stay level at their figures.
        assert pair.gaps[-1].difference.low == pytest.approx(pair.over_seeds.low)
    assert pair_of(result_of([a, dataclasses.replace(b, trainable=False)])).gaps == ()


def test_everything_follows_from_the_json_of_a_result_alone() -> None:
    for result in (study(), study(test="paired"), study(seeds=1)):
        again = StudyResult.from_json(json.loads(dumps(result.to_json())))
        assert again == result
        stripped = dataclasses.replace(again, differences=(), tied_sets=())
        worked_out = judged(stripped)
        assert worked_out.tied_sets == result.tied_sets
        assert worked_out.differences == result.differences, "to the last bit, on the same machine"
        assert disagreement(again) is None


def _other_p(result: StudyResult) -> StudyResult:
    pairs = (dataclasses.replace(result.differences[0], p_value=0.5), *result.differences[1:])
    return dataclasses.replace(result, differences=pairs)


def _other_nats(result: StudyResult) -> StudyResult:
    first = result.entries[0]
    nats = (first.runs[0].document_nats[0] * 1.01, *first.runs[0].document_nats[1:])
    entries = (dataclasses.replace(first, runs=(dataclasses.replace(first.runs[0], document_nats=nats),
                                                *first.runs[1:])), *result.entries[1:])
    return dataclasses.replace(result, entries=entries)


def _fewer_nats(result: StudyResult) -> StudyResult:
    first = result.entries[0]
    run = dataclasses.replace(first.runs[0], document_nats=first.runs[0].document_nats[:-1])
    entries = (dataclasses.replace(first, runs=(run, *first.runs[1:])), *result.entries[1:])
    return dataclasses.replace(result, entries=entries)


@pytest.mark.parametrize(("change", "said"), [
    (_other_p, "the difference of transformer and s4d does not follow from their runs"),
    (_other_nats, "the difference of transformer and s4d does not follow from their runs"),
    (_fewer_nats, "run 1 of transformer has the nats of 60 documents, and the test text 61"),
    (lambda result: dataclasses.replace(result, tied_sets=(("transformer",), ("s4d",))),
     "its tied sets do not follow from its runs"),
    (lambda result: dataclasses.replace(result, differences=()), "it has 0 differences, and its runs give 1")])
def test_a_result_whose_figures_are_not_those_of_its_runs_is_not_shown(
        change: Callable[[StudyResult], StudyResult], said: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(dumps(study(2).to_json()))
    assert rerender(tmp_path).exists()
    changed = change(study(2))
    (tmp_path / "result.json").write_text(dumps(changed.to_json()))
    assert read_result(tmp_path) == changed
    with pytest.raises(CheckpointError, match=said):
        rerender(tmp_path)


def test_documents_are_kept_where_there_are_many() -> None:
    many = TokenScores(np.ones(60), np.full(60, 2), np.repeat(np.arange(30), 2), np.ones(60, np.int64),
                       np.zeros(60))
    assert many.clusters() == ([2.0] * 30, [4] * 30)


def test_few_documents_are_cut_into_blocks_between_bytes() -> None:
    few = TokenScores(np.ones(200), np.full(200, 2), np.zeros(200, np.int64), np.ones(200, np.int64),
                      np.zeros(200))
    nats, sizes = few.clusters()
    assert (nats, sizes) == (pytest.approx([4.0] * 50), [8] * 50)


def test_blocks_have_the_same_bytes_whatever_the_tokens() -> None:
    """The nats of a token that lies on both sides of a cut are shared out by its bytes."""
    draws = np.random.default_rng(0)
    for lengths in (np.full(600, 1), draws.multinomial(600, np.full(90, 1 / 90)), np.array([0, 599, 0, 1, 0])):
        per_byte = 0.25
        scores = TokenScores(lengths * per_byte + (lengths == 0) * 0.5, lengths, np.zeros(len(lengths), np.int64),
                             np.ones(len(lengths), np.int64), np.zeros(len(lengths)))
        nats, sizes = scores.clusters()
        assert sizes == [12] * 50
        assert sum(nats) == pytest.approx(float(scores.nats.sum()))
        empty = int((lengths == 0).sum())
        # Beside the tokens of no bytes, which count whole where they stand, every byte costs the same.
        assert sum(value == pytest.approx(12 * per_byte) for value in nats) >= 50 - empty
    assert nats[0] == pytest.approx(0.5 + 3.0) and nats[-1] == pytest.approx(1.0 + 3.0)


def test_a_length_at_which_a_recurrence_gives_nan_has_infinite_figures_and_the_run_stands(tmp_path: Path) -> None:
    """A state that grows threefold at every token leaves float32 after some 80, and its square sooner."""
    model = parse_model({"kind": "decoder", "vocab_size": ByteTokenizer().vocab_size, "d_model": 4, "norm": "layernorm",
                         "blocks": [{"kind": "pre", "layers": [{"kind": "linear_ssm", "d_state": 2}]}]}).build()
    assert isinstance(model, LanguageModel)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, LinearSSM):
                layer.a.copy_(10 * torch.eye(2).expand_as(layer.a))
                layer.log_dt.fill_(math.log(0.1))
    (tmp_path / "text.txt").write_text("to be or not to be, " * 100, encoding="utf-8")
    stream = encode_corpus(read_text(tmp_path / "text.txt"), ByteTokenizer())
    short, long = by_length(model, stream, [16, 1024], 16)
    assert short.trained and math.isfinite(short.bits_per_byte or math.inf)
    assert long == LengthPoint(1024, math.inf, math.inf, False)
    with pytest.raises(FailedError, match="the model gives NaN"):
        by_length(model, stream, [1024], 1024)
