"""The opening of the page, quality against cost, the models' portraits, the files to save, and curves beyond the
budget."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import random
from urllib.parse import unquote

import pytest
import yaml

from comparison.report.fixture import hostile, study, unfinished
from comparison.report.reading import Node, read, rows
from weft.comparison.report import render
from weft.comparison.report.portraits import portrait
from weft.comparison.report.quality_cost import lead, pareto
from weft.comparison.report.study_sentences import dots
from weft.comparison.report.view import View
from weft.comparison.results import DecodePoint, StudyModel, decoding_of
from weft.comparison.study_result import StudyResult

PRE = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "position": "rope"},
                                 {"kind": "glu", "d_ff": 290}]}
CONFIG = yaml.safe_dump({"model": {"kind": "decoder", "vocab_size": 300, "context": 64, "d_model": 112,
                                   "blocks": [{"repeat": 4, "of": [PRE]}]}})


def section_of(result: StudyResult, name: str) -> Node:
    return next(each for each in read(render(result)).all("section") if each.attributes.get("id") == name)


def text_of(markup: str) -> str:
    return read(f"<p>{markup}</p>").text()


def test_no_other_point_beats_those_of_the_line() -> None:
    draws = random.Random(0)
    for _ in range(50):
        points = [(draws.randrange(6), draws.randrange(6)) for _ in range(8)]
        front = pareto([(float(cost), float(bits)) for cost, bits in points])
        for place, (cost, bits) in enumerate(points):
            beaten = any((a <= cost and b < bits) or (a < cost and b <= bits) for a, b in points)
            assert (place in front) == (not beaten)
        assert [points[place] for place in front] == sorted(points[place] for place in front)


def test_the_sentence_names_the_best_the_smallest_state_and_the_fastest() -> None:
    said = text_of(lead(View(study())))
    assert said.startswith("transformer predicts best (1.511 bits per byte; not told apart from s4d); kneser-ney-5 has "
                           "the smallest state (32 B after 256 tokens) and decodes fastest (0.0968 ms a token). On the")
    slow = dataclasses.replace(study(), entries=tuple(
        dataclasses.replace(entry, decode=tuple(dataclasses.replace(point, seconds=1e-6) for point in entry.decode))
        if entry.name == "lstm" else entry for entry in study().entries))
    assert "32 B after 256 tokens); lstm decodes fastest (0.00100 ms a token)." in text_of(lead(View(slow)))


def test_the_page_opens_with_a_row_for_every_model_under_its_sentence() -> None:
    opening = section_of(study(), "verdict")
    kinds = [child.attributes.get("class", child.name) for child in opening.all("div", "verdict")[0].children
             if isinstance(child, Node)]
    assert kinds == ["lead", "strips dots", "grounds"]
    shown = rows(opening.all("table", "dots")[0])
    assert [row[0] for row in shown[1:3]] == ["transformer", "s4d"] and len(shown) == 7
    first = opening.all("table", "dots")[0].all("tr")[1]
    assert len(first.all("line", "outer")) == 3, "a tick for each run"
    assert len(first.all("line", "inner")) == 1, "an interval"
    assert dots(View(unfinished(study()))) == ""
    assert "without intervals over seeds" in section_of(study(seeds=1), "verdict").text()


def test_a_portrait_says_what_a_configuration_describes_and_draws_it() -> None:
    entry = dataclasses.replace(study().entries[0], config=CONFIG)
    found = portrait(entry, "one")
    assert found.words == "4 layers, width 112, 4 heads / 2 kv, RoPE, SwiGLU 290"
    assert found.drawing is not None and 'data-repeat="4"' in found.drawing.body
    card = section_of(dataclasses.replace(study(2), entries=(entry, study(2).entries[1])), "models").all("article")[0]
    assert found.words in card.text() and len(card.all("svg", "figure")) == 1


@pytest.mark.parametrize(("config", "why"), [
    ("model: {kind: decoder, d_model: 192}", "blocks"), ("model: {kind: of-a-plugin}", "of-a-plugin"),
    ("[", "not YAML"), ("text", "the configuration names no model")])
def test_a_configuration_that_cannot_be_read_is_named_in_place_of_its_drawing(config: str, why: str) -> None:
    found = portrait(dataclasses.replace(study().entries[0], config=config), "one")
    assert found.drawing is None and why in found.missing and found.words == "decoder: attention, glu"


def sheet(result: StudyResult, name: str) -> list[dict[str, str]]:
    link = next(each for each in read(render(result)).all("a") if each.attributes.get("download") == name)
    return list(csv.DictReader(io.StringIO(unquote(link.attributes["href"].partition(",")[2]))))


def test_the_files_hold_every_figure() -> None:
    result = study()
    models, runs = sheet(result, "models.csv"), sheet(result, "runs.csv")
    by_name = {entry.name: entry for entry in result.entries}
    assert [row["model"] for row in models][:2] == ["transformer", "s4d"] and len(models) == 6
    for row in models:
        assert float(row["bits per byte"]) == pytest.approx(by_name[row["model"]].bits_per_byte, rel=1e-6)
    assert len(runs) == 18
    for row in runs:
        run = by_name[row["model"]].runs[int(row["run"]) - 1]
        assert float(row["bits per byte"]) == pytest.approx(run.bits_per_byte, rel=1e-6)
        assert float(row["seconds"]) == pytest.approx(run.seconds, rel=1e-6)
    assert "0.01=diverged (the loss was not finite at step 112)" in runs[0]["trials (learning rate=bits per byte)"]


def test_a_name_that_a_spreadsheet_would_work_out_is_text() -> None:
    result = study(2)
    named = dataclasses.replace(result, entries=(dataclasses.replace(result.entries[0], name="=1+1"),
                                                 result.entries[1]), differences=(), tied_sets=())
    assert {row["model"] for row in sheet(named, "models.csv")} == {"'=1+1", "s4d"}
    assert len(sheet(hostile(study()), "runs.csv")) == 18


def test_curves_are_extended_or_the_page_says_why_not() -> None:
    section = section_of(study(), "training")
    said = next(each for each in section.all("div", "beyond")).text()
    assert "Method: bits = floor + scale" in said
    for name in ("transformer", "s4d", "lstm", "convolution", "feed-forward"):
        assert f"{name} tends to" in said or f"{name} is not extended: by the law" in said
    few = section_of(study(validations=4), "training").all("div", "beyond")[0].text()
    assert "are not extended: a law is tested from 4 checkpoints in the first 67 % of the budget on" in few


def test_decoding_over_runs_keeps_the_widest_quartiles() -> None:
    runs = [(DecodePoint(8, 1.0, 5, 0.9, 1.2),), (DecodePoint(8, 3.0, 5, 2.0, 4.0),), (DecodePoint(8, 2.0, 5),)]
    assert decoding_of(runs) == (DecodePoint(8, 2.0, 5, 0.9, 4.0),)
    assert decoding_of([]) == ()


def test_the_spread_of_decoding_is_drawn_and_said() -> None:
    def timed(entry: StudyModel) -> StudyModel:
        return dataclasses.replace(entry, decode=tuple(dataclasses.replace(
            point, low=(point.seconds or 0) / 2, high=(point.seconds or 0) * 2) for point in entry.decode))

    plain = section_of(study(), "cost")
    spread = section_of(dataclasses.replace(study(), entries=tuple(map(timed, study().entries))), "cost")
    assert len(spread.all("path", "whisker")) - len(plain.all("path", "whisker")) == 24
    cells = list(itertools.chain(*rows(next(each for each in spread.all("table") if "Median time" in each.text()))))
    assert any("ms (" in cell and " to " in cell for cell in cells)
