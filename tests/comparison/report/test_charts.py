"""Charts: axes, labels that keep apart, and series at the places that their numbers have."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re

import pytest

from comparison.report.fixture import SHAPES, study
from comparison.report.reading import Node, read, rows
from weft.comparison.report import render
from weft.comparison.report.gaps import gaps
from weft.comparison.report.training import mean_curve, thinned
from weft.comparison.report.view import View
from weft.comparison.study_result import StudyResult
from weft.drawing.axes import linear, logarithmic, logarithmic_ticks, powers_of_two
from weft.drawing.marks import path_data, spread
from weft.drawing.markup import annotated, escape, shorten, width_of


def chart(result: StudyResult, name: str) -> Node:
    return next(each for each in read(render(result)).all("svg", "chart")
                if each.attributes["aria-labelledby"].startswith(f"{name}-t "))


def points(drawing: Node, index: int) -> list[list[float | str]]:
    group = next(each for each in drawing.all("g", "series") if each.attributes["data-model"] == str(index))
    found: list[list[float | str]] = json.loads(group.attributes["data-points"])
    return found


def test_ticks_are_round_and_inside() -> None:
    axis = linear([0.13, 0.87], 0, 100)
    assert axis is not None and axis.ticks == pytest.approx((0.2, 0.4, 0.6, 0.8))
    assert [axis.write(tick) for tick in axis.ticks] == ["0.2", "0.4", "0.6", "0.8"]
    assert logarithmic_ticks(90, 120_000, 5) == (100, 1000, 10_000, 100_000)
    assert logarithmic_ticks(1.4, 3.5, 6) == pytest.approx((1.5, 2, 2.5, 3, 3.5))
    powers = powers_of_two([64, 4096], 0, 100, str)
    assert powers is not None and powers.ticks == (64, 128, 256, 512, 1024, 2048, 4096)[::2]


def test_axes_of_nothing_are_none_and_of_equal_values_are_wide() -> None:
    assert linear([None, math.nan, math.inf], 0, 1) is None
    assert logarithmic([0.0, -1.0, math.inf], 0, 1, str) is None
    for axis in (linear([2.0, 2.0], 0, 1), linear([0.0], 0, 1), logarithmic([3.0, 3.0], 0, 1, str)):
        assert axis is not None and axis.low < axis.high and len(axis.ticks) >= 1
        assert math.isfinite(axis.place(axis.low)) and not axis.holds(math.inf) and not axis.holds(None)


@pytest.mark.parametrize(("wanted", "found"), [
    ([10, 50], [10, 50]), ([50, 50], [45, 55]), ([0, 0, 0], [0, 10, 20]), ([99, 99], [90, 100]),
    ([10, 12, 90], [6, 16, 90])])
def test_labels_are_moved_apart_no_further_than_they_must(wanted: list[float], found: list[float]) -> None:
    assert spread(wanted, 10, 0, 100) == pytest.approx(found)


def test_names_beside_lines_never_overlap() -> None:
    drawing = chart(study(12, 2), "curve-tokens")
    heights = sorted(float(each.attributes["y"]) for each in drawing.all("text", "name"))
    assert len(heights) == 12
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 11


def test_paths_break_where_a_number_is_missing() -> None:
    assert path_data([(0, 1), (1, math.nan), (2, 3), (3, 4)]) == "M0 1M2 3L3 4"


def test_curves_lie_where_the_means_are() -> None:
    result = study()
    drawing = chart(result, "curve-tokens")
    means = thinned(mean_curve(result.entries[0]))
    shown = points(drawing, 0)
    assert [point[3] for point in shown] == [f"{mean.bits_per_byte:.3f}" for mean in means]
    steps = {(float(a[0]) - float(b[0])) / math.log(p.tokens / q.tokens)
             for a, b, p, q in zip(shown, shown[5:], means, means[5:], strict=False)}
    assert max(steps) - min(steps) < 1.5  # A logarithmic axis, places rounded to a tenth.


def test_each_finished_run_is_a_thin_line_and_a_counted_model_a_level_one() -> None:
    drawing = chart(study(), "curve-seconds")
    groups = {each.attributes["data-model"]: each for each in drawing.all("g", "series")}
    assert [len(groups[str(index)].all("path", "seed")) for index in range(6)] == [3, 3, 3, 3, 3, 0]
    level = re.findall(r"[ML]([\d.]+) ([\d.]+)", groups["5"].all("path", "level")[0].attributes["d"])
    assert len(level) == 2 and level[0][1] == level[1][1]


def test_a_counted_model_has_no_figure_left_of_what_it_has_read() -> None:
    """It is drawn from the tokens and the seconds that it took, and not against what it does not take."""
    result = study()
    counted, trained = result.entries[5], result.entries[0]
    half = dataclasses.replace(counted, runs=tuple(dataclasses.replace(run, curve=tuple(
        dataclasses.replace(point, tokens=trained.runs[0].curve[19].tokens) for point in run.curve))
        for run in counted.runs))
    changed = dataclasses.replace(result, entries=(*result.entries[:5], half))
    start, end = points(chart(changed, "curve-tokens"), 5)
    assert start[0] == points(chart(changed, "curve-tokens"), 0)[thinned(mean_curve(trained)).index(
        mean_curve(trained)[19])][0], "where the trained model has read as much"
    assert float(end[0]) > float(start[0]) and start[2] == end[2] == "6.14\u202fM"
    late = points(chart(result, "curve-tokens"), 5)
    assert late[0][0] == points(chart(result, "curve-tokens"), 0)[-1][0], "all of the budget"
    panel = next(each for each in section_of(result, "training").all("div", "panel")
                 if each.all("h4")[0].text() == "Bits per byte against FLOPs")
    assert panel.all("p", "panel-note")[0].text() == "not drawn, as counting has no such cost: kneser-ney-5"
    assert "5" not in {each.attributes["data-model"] for each in panel.all("g", "series") if each.all("path")}


def test_what_a_model_that_was_validated_once_is_worth_later_is_not_drawn() -> None:
    result = study(2, validations=1)
    drawing = chart(result, "curve-tokens")
    assert len(points(drawing, 0)) == 1 and not drawing.all("path", "level")[0].attributes["d"].count("L")


def test_the_lead_of_the_curves_names_only_what_is_drawn() -> None:
    assert "A model that is counted, not trained, has one figure" in section_of(study(), "training").text()
    assert "counted" not in section_of(study(5), "training").text()
    assert "Thin lines" not in section_of(study(5, 1), "training").text()


def test_the_lead_of_the_costs_says_whose_state_grows() -> None:
    said = section_of(study(3), "cost").text()
    assert ("When decoding, the state of transformer grows with the context and the state of s4d and lstm stays "
            "level.") in said


def test_a_level_stands_where_its_curves_text_has_it_even_far_from_the_figure_of_the_table() -> None:
    """Curves are measured on a part of the test text, on which a figure may be well above or below."""
    result = study()
    counted = dataclasses.replace(result.entries[5], runs=tuple(
        dataclasses.replace(run, bits_per_byte=0.5) for run in result.entries[5].runs))
    assert counted.bits_per_byte == 0.5
    best = dataclasses.replace(result, entries=(*result.entries[:5], counted), tied_sets=((counted.name,),))
    drawing = chart(best, "curve-tokens")
    mean = sum(run.curve[-1].bits_per_byte for run in counted.runs) / len(counted.runs)
    assert {point[3] for point in points(drawing, 5)} == {f"{mean:.3f}"}


def test_long_curves_are_thinned_with_both_ends_kept() -> None:
    curve = study(1, 1, validations=500).entries[0].runs[0].curve
    kept = thinned(curve)
    assert len(kept) <= 48 and kept[0] is curve[0] and kept[-1] is curve[-1]
    assert thinned(curve[:30]) == list(curve[:30])


def test_a_mean_needs_the_step_of_every_run() -> None:
    entry = study(1).entries[0]
    runs = (dataclasses.replace(entry.runs[0], curve=entry.runs[0].curve[::2]), *entry.runs[1:])
    mean = mean_curve(dataclasses.replace(entry, runs=runs))
    assert [point.step for point in mean] == [point.step for point in entry.runs[0].curve[::2]]
    assert mean[0].bits_per_byte == pytest.approx(sum(run.curve[0].bits_per_byte for run in entry.runs) / 3)


def test_gaps_say_which_orders_change() -> None:
    page = gaps(View(study()))
    assert page.count('<span class="flag">order changes</span>') == 1
    assert page.count("order holds") == 2 and page.count("means cross</p>") == 1


def test_the_order_of_every_pair_is_shown_and_where_it_crosses() -> None:
    result = study()
    tables = {table.all("caption")[0].text(): rows(table) for table in read(render(result)).all("table")}
    shown = next(found for caption, found in tables.items() if caption.startswith("Every pair of trained models, the"))
    assert shown[0][2:] == [f"at {share} %" for share in range(20, 101, 20)]
    trained = [entry for entry in result.entries if entry.trainable]
    assert len(shown) == 1 + math.comb(len(trained), 2)
    orders = {row[0]: row[1] for row in shown[1:]}
    assert orders["lstm − transformer"] == "changes between 40 % and 50 %"
    assert orders["s4d − transformer"] == "means cross between 80 % and 90 %, undecided at the end"
    assert orders["feed-forward − convolution"] == "holds from 10 % on"
    for row in shown[1:]:
        worse, _, better = row[0].partition(" − ")
        ends = [result_of(result, name) for name in (worse, better)]
        assert float(row[-1].replace("−", "-")) == pytest.approx(ends[0] - ends[1], abs=6e-4)


def result_of(result: StudyResult, name: str) -> float:
    """The mean of the curves' last points."""
    runs = next(entry for entry in result.entries if entry.name == name).runs
    return sum(run.curve[-1].bits_per_byte for run in runs) / len(runs)


def test_the_order_of_all_models_is_shown_where_it_is_the_same() -> None:
    tables = {table.all("caption")[0].text(): rows(table) for table in read(render(study())).all("table")}
    shown = tables["Trained models from best to worst in the mean"]
    assert [row[:4] for row in shown] == [
        ["Share of the budget", "1", "2", "3"], ["10 % to 40 %", "s4d", "lstm", "transformer"],
        ["50 % to 80 %", "s4d", "transformer", "lstm"], ["90 % to 100 %", "transformer", "s4d", "lstm"]]


def test_many_pairs_are_folded() -> None:
    section = next(each for each in read(render(study(12, 2))).all("section")
                   if each.attributes.get("id") == "gaps")
    assert "The order of all 45 pairs" in [each.text() for each in section.all("summary")]


def test_gaps_are_above_the_best_trained_model_where_a_counted_one_is_best() -> None:
    counted = dataclasses.replace(SHAPES[-1], level=1.2)
    section = next(each for each in read(render(study(3, shapes=(*SHAPES[:2], counted)))).all("section")
                   if each.attributes.get("id") == "gaps")
    said = section.text()
    assert "in the charts bits per byte above transformer, the best model that was trained, with the interval" in said
    assert "s4d minus transformer during training" in said and "No shared checkpoints: kneser-ney-5." in said
    assert len(section.all("svg", "chart")) == 1
    assert "above transformer, the best model, with the interval" in read(render(study(2))).text()


def test_bowls_ring_the_choice_flag_the_edge_and_cross_out_what_failed() -> None:
    result = study()
    lstm, other = chart(result, "bowl-2"), chart(result, "bowl-0")
    assert len(lstm.all("circle", "ring")) == len(other.all("circle", "ring")) == 3, "every run has chosen"
    assert (len(lstm.all("path", "lost")), len(other.all("path", "lost"))) == (0, 3)
    assert len(points(lstm, 2)) == len(points(other, 0)) == 9, "every trial of every run that finished"
    assert "run 2, 0.01: diverged (the loss was not finite at step 112)" in other.all("desc")[0].text()
    notes = {panel.all("h4")[0].text(): panel.all("p", "panel-note")[0].text()
             for panel in section_of(result, "tuning").all("div", "panel")}
    assert notes == {"transformer": "chosen: 0.003", "s4d": "chosen: 0.001 (1×), 0.003 (2×)",
                     "lstm": "chosen: 0.003, at the edge", "convolution": "chosen: 0.003",
                     "feed-forward": "chosen: 0.003"}


def section_of(result: StudyResult, name: str) -> Node:
    return next(each for each in read(render(result)).all("section") if each.attributes.get("id") == name)


def test_the_lead_of_the_learning_rates_counts_what_was_tried() -> None:
    result = study()
    assert "chose its own learning rate among 3 to 4, by trials with its own seeds." in section_of(
        result, "tuning").text()
    single = section_of(study(1, 1), "tuning").text()
    assert "among 4, by trials" in single and "A line is one run's search" not in single


def test_lengths_mark_the_trained_window_and_leave_out_what_is_out_of_reach() -> None:
    drawing = chart(study(), "context-length")
    assert len(drawing.all("line", "trained")) == 1
    assert len(points(drawing, 0)) == 4 and len(points(drawing, 1)) == 5
    assert points(drawing, 1)[-1][2] == "1,024 tokens"


def test_decoding_is_drawn_on_two_logarithmic_axes() -> None:
    rising, level = points(chart(study(), "decode-state"), 0), points(chart(study(), "decode-state"), 1)
    steps = [float(a[1]) - float(b[1]) for a, b in itertools.pairwise(rising)]
    assert max(steps) - min(steps) < 0.3 and min(steps) > 10
    assert len({point[1] for point in level}) == 1


def test_names_are_shortened_in_the_middle_by_their_width() -> None:
    assert shorten("transformer-with-eight-layers", 15) == "transfo\u2026-layers"
    assert shorten("short", 15) == "short"
    assert width_of(shorten("変換器モデル・八層・幅百九十二", 13)) <= 13


def test_hidden_characters_are_named_in_samples() -> None:
    assert annotated("a\x1b\n<") == 'a<span class="control" title="U+001B">\u241b</span>\n&lt;'
    assert escape("\u200b\x85") == "\u27e8200B\u27e9\u27e80085\u27e9"
