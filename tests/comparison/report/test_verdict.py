"""The verdict says what the statistics say, and no more."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from comparison.report.fixture import bare, identical, study, unfinished
from comparison.report.reading import read
from weft.comparison.power import reached
from weft.comparison.report import render
from weft.comparison.report.differences import reach_of
from weft.comparison.statistics import Interval
from weft.comparison.study_result import Difference, Matched, StudyResult
from weft.comparison.verdict import judged


def words(result: StudyResult) -> str:
    section = next(each for each in read(render(result)).all("section") if each.attributes.get("id") == "verdict")
    return section.text()


def changed(result: StudyResult, first: str, second: str, change: Callable[[Difference], Difference]) -> StudyResult:
    """With another difference between two models."""
    return dataclasses.replace(result, differences=tuple(
        change(each) if (each.first, each.second) == (first, second) else each for each in result.differences))


def test_models_that_are_not_told_apart_at_the_top_are_named_together() -> None:
    said = words(study())
    assert "transformer and s4d are at the top: this study does not tell them apart." in said
    assert "predicts this text best" not in said


def test_the_next_model_comes_with_the_interval_of_both_sources() -> None:
    result = changed(study(), "transformer", "lstm", lambda each: dataclasses.replace(
        each, over_seeds=Interval(-0.0612, -0.0712, -0.0512), over_both=Interval(-0.0612, -0.0912, -0.0312)))
    assert ("Next, lstm needs 0.061 bits per byte more than transformer (95 % interval 0.031 to 0.091)"
            ) in words(result)


def test_a_single_best_model_is_said_to_predict_best() -> None:
    result = dataclasses.replace(study(2), tied_sets=(("transformer",), ("s4d",)))
    assert "transformer predicts this text best of the 2 models: 1.5112 bits per byte." in words(result)


def test_a_model_whose_runs_differ_too_much_to_be_placed_is_not_called_best() -> None:
    """It is not told apart from the best, but models with a lower mean are."""
    result = dataclasses.replace(study(3), tied_sets=(("transformer", "lstm"), ("s4d", "lstm")))
    said = words(result)
    assert "transformer predicts this text best of the 2 models, lstm left aside: 1.5112 bits per byte." in said
    assert "at the top" not in said and "Next, s4d needs" in said
    assert ("lstm (+0.060 in the mean) is not told apart from transformer, although s4d, whose mean is lower, is: this "
            "study cannot place it.") in said


def test_models_not_told_apart_from_the_best_may_be_told_apart_from_each_other() -> None:
    """The models that share a set with the best need not share one with each other."""
    result = dataclasses.replace(study(3), tied_sets=(("transformer", "s4d"), ("transformer", "lstm")))
    assert not next(each for each in result.differences if {each.first, each.second} == {"s4d", "lstm"}).tied
    said = words(result)
    assert ("transformer has the lowest mean, 1.5112 bits per byte, and this study does not tell s4d or lstm apart "
            "from it; among these, s4d is better than lstm.") in said
    assert "at the top" not in said


def test_a_model_of_the_top_that_shares_no_set_with_another_of_it() -> None:
    result = dataclasses.replace(study(4), tied_sets=(("transformer", "s4d", "convolution"), ("lstm",)))
    said = words(changed(result, "s4d", "convolution", lambda each: dataclasses.replace(each, tied=True)))
    assert "transformer and s4d are at the top" in said
    assert "convolution (+0.103 in the mean) is not told apart from transformer, although lstm" in said


def test_none_told_apart() -> None:
    said = words(identical(study(3)))
    assert "This study does not tell transformer, s4d and lstm apart." in said
    assert "Next" not in said
    assert "This study does not tell transformer and s4d apart." in words(identical(study(2)))


def test_one_seed_says_that_nothing_can_be_said_about_seeds() -> None:
    said = words(study(seeds=1))
    assert "Each model ran once. Nothing can be said about other seeds" in said
    assert "power" not in said
    assert "no difference could be tested, so this is an order of figures and no finding" in said
    assert "Nothing can be said about other seeds" not in words(study(seeds=2))


def test_what_could_be_detected_is_stated_with_its_ground() -> None:
    said = words(study())
    own = reached(study())
    assert own is not None
    assert own.low is not None and own.high is not None and own.low < own.mean < own.high
    assert (f"With 3 runs of each model, this study finds differences of about {reach_of(own.mean)} bits per byte or "
            f"more, on another text too, by how far its runs and documents lie apart ({reach_of(own.low)} to "
            f"{reach_of(own.high)} by the interval of that), with a power of 0.8. Before its runs, about 0.038 "
            "were expected. Models that are not told apart") in said
    assert said.index("With 3 runs of each model") < said.index("From run to run"), "it comes first"
    assert said.count("power") == 1
    assert "need not be as good as each other" in said


def test_what_was_matched_and_what_was_not() -> None:
    said = words(study())
    assert "Matched: parameters (within 0.18 %) and training tokens (exactly)." in said
    assert ("Not matched, so the models may owe their places to it: parameters without embeddings (up to 0.24 %), "
            "training FLOPs (up to 32 %), training seconds (up to 4.1×) and state bytes (up to 2,000×).") in said


def test_what_was_meant_to_be_equal_and_is_not() -> None:
    result = study()
    missed = (Matched("training seconds", True, 0.59), Matched("training tokens", True, 0.0))
    said = words(dataclasses.replace(result, budget=dataclasses.replace(result.budget, matched=missed)))
    assert "Matched: training tokens (exactly). Meant to be equal, and not: training seconds (missed by 59 %)." in said


def test_orders_that_cross_are_named() -> None:
    result = study()
    none = dataclasses.replace(result, differences=tuple(dataclasses.replace(each, crosses=False)
                                                         for each in result.differences))
    assert "The order changes" not in words(none)
    said = words(changed(none, "transformer", "lstm", lambda each: dataclasses.replace(each, crosses=True)))
    assert "The order changes during training between transformer and lstm: a smaller budget would have said" in said
    every = dataclasses.replace(result, differences=tuple(dataclasses.replace(each, crosses=True)
                                                          for each in result.differences))
    assert "and in 12 more of the 15 pairs:" in words(every)


def test_edges_are_named() -> None:
    result = study()
    assert "The best learning rate of lstm (in every run) lies at the edge of those tried" in words(result)
    once = dataclasses.replace(result.entries[1], runs=tuple(
        dataclasses.replace(run, edge=run.index == 2) for run in result.entries[1].runs))
    two = dataclasses.replace(result, entries=(result.entries[0], once, *result.entries[2:]))
    assert ("rate of s4d (in 1 of 3 runs) and lstm (in every run) lies at the edge of those tried; a wider search may "
            "improve them.") in words(two)


def test_what_varies_from_run_to_run_is_said() -> None:
    said = words(study())
    assert ("From run to run of a model vary the initial weights and dropout, the order of the data and the choice of "
            "the learning rate, which every run makes by trials of its own, and the intervals over seeds contain just "
            "that. kneser-ney-5 is counted, and all its runs are the same.") in said
    assert "Runs chose different learning rates in s4d (0.001 in 1 and 0.003 in 2)." in said


def test_the_larger_doubt_is_named_over_all_pairs() -> None:
    result = study()
    errors = [(each.seed_error or 0.0, each.document_error) for each in result.differences]
    runs = sum(seed > document for seed, document in errors)
    assert 0 < runs < 15, "the case has both"
    assert f"Runs weigh more in {runs} of 15 pairs, documents in {15 - runs}:" in words(result)
    calm = dataclasses.replace(result, differences=tuple(dataclasses.replace(each, document_error=1e-5)
                                                         for each in result.differences))
    assert "Runs weigh more in every pair: more runs would tell more than a longer test text." in words(calm)


def test_counted_models_are_not_said_to_be_trained() -> None:
    assert "kneser-ney-5 is counted, not trained: it read 12,288,000 tokens in 11.5 s." in words(study())
    assert "counted" not in words(study(5))


def test_lost_runs_are_counted() -> None:
    said = words(unfinished(study(), ("lstm", "s4d")))
    assert "Of 18 runs, 6 diverged (s4d and lstm). No run of s4d or lstm finished." in said
    assert "flatters" not in said, "no mean is over a part of the runs"
    assert "best of the 4 models" in said


def test_nothing_finished() -> None:
    said = words(unfinished(study()))
    assert "No run finished, so nothing can be said about which model is better." in said
    assert "Next" not in said


def test_one_model_has_nothing_to_be_compared_with() -> None:
    assert "Only transformer finished, at 1.5112 bits per byte; there is nothing to compare it with." in words(study(1))


def test_without_any_test_there_is_no_finding() -> None:
    said = words(bare(study()))
    assert "no difference could be tested" in said
    assert "Next" not in said and "at the top" not in said


def test_a_mean_over_a_part_of_the_runs_is_said_to_flatter() -> None:
    result = study()
    lost = dataclasses.replace(result.entries[2].runs[0], status="interrupted", bits_per_byte=None)
    broken = dataclasses.replace(result.entries[1].runs[0], status="diverged", bits_per_byte=None)
    entries = (result.entries[0], dataclasses.replace(result.entries[1], runs=(broken, *result.entries[1].runs[1:])),
               dataclasses.replace(result.entries[2], runs=(lost, *result.entries[2].runs[1:])), *result.entries[3:])
    said = words(dataclasses.replace(result, entries=entries))
    assert ("Of 18 runs, 1 diverged and 1 interrupted (s4d and lstm). The mean of s4d is over the runs that finished, "
            "which flatters a model that loses some.") in said


def test_nothing_is_said_to_be_tied_or_as_good_for_want_of_a_difference() -> None:
    for result in (study(), study(3), identical(study(3)), study(seeds=1)):
        page = render(dataclasses.replace(result, margin=None))
        assert not re.search(r"\b(tied|ties?|equally good|as good as (?!each other\.))\b", re.sub(r"<[^>]*>", "", page))


def test_models_are_as_good_as_the_best_where_tests_of_equivalence_show_it() -> None:
    """Of equal figures every test does, within any margin; of those 0.01 apart it needs a wide one."""
    said = words(judged(dataclasses.replace(identical(study(3)), margin=0.005)))
    assert ("This study does not tell transformer, s4d and lstm apart. The lowest mean is 1.5112 bits per byte, of "
            "transformer. s4d and lstm are as good as transformer within 0.005 bits per byte.") in said
    pair = judged(dataclasses.replace(study(2), margin=0.01)).differences[0]
    assert pair.tied and not pair.equivalent and pair.p_equivalent is not None and pair.p_equivalent > 0.05
    assert "as good as transformer" not in words(judged(dataclasses.replace(study(2), margin=0.01)))
    wide = judged(dataclasses.replace(study(2), margin=0.5))
    assert wide.differences[0].equivalent and "s4d is as good as transformer within 0.5 bits" in words(wide)
