"""The figures of the tables are those of the study, rounded as stated."""

from __future__ import annotations

import dataclasses
import statistics

import pytest

from comparison.report.fixture import study, unfinished
from comparison.report.reading import Node, read, rows
from weft.comparison.report import render
from weft.comparison.report.numbers import decimals_of
from weft.comparison.report.ranking import interval_of, letter
from weft.comparison.results import Entry, Matched, StudyResult

SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "s": 1.0}


def ranking(result: StudyResult) -> Node:
    return read(render(result)).all("table", "ranking")[0]


def value(shown: str) -> float:
    """Of a number with thousands and a unit."""
    number, _, unit = shown.partition(" ")
    return float(number.replace(",", "")) * SCALE[unit]


def median(entry: Entry, name: str) -> float:
    return statistics.median(float(getattr(run, name)) for run in entry.finished)


def test_every_number_of_the_main_table() -> None:
    result = study()
    head, *body = rows(ranking(result))
    assert [cell.split(" =")[0].split(" ≠")[0] for cell in head[3:]] == [
        "Parameters", "Body + embeddings", "FLOPs", "Tokens", "Time", "Tokens/s", "Peak memory", "State",
        "Runs finished"]
    ranked = sorted(result.entries, key=lambda entry: entry.bits_per_byte or 0.0)
    for cells, entry in zip(body, ranked, strict=True):
        assert cells[0].startswith(entry.name)
        check_row(cells, entry)


def check_row(cells: list[str], entry: Entry) -> None:
    interval = interval_of(entry, 0.95)
    assert interval is not None and interval.low is not None and interval.high is not None
    half = (interval.high - interval.low) / 2
    places = decimals_of(half)
    spread = f"±{half:.{places}f}" if half else "no spread"
    assert cells[1].split() == f"{interval.mean:.{places}f} {spread}".split()
    shown = {4 + at: name for at, name in enumerate(("", "", "tokens", "seconds", "tokens_per_second",
                                                     "peak_memory_bytes"))}
    for column in (6, 7, 8, 9):
        # Three significant digits: half a unit of the third is at most half a percent.
        assert value(cells[column]) == pytest.approx(median(entry, shown[column]), rel=0.005)
    if entry.trainable:
        body, embeddings = cells[4].split(" + ")
        assert value(cells[3]) == pytest.approx(entry.parameters, rel=0.005)
        assert value(body) == pytest.approx(entry.parameters - entry.embedding_parameters, rel=0.005)
        assert value(embeddings) == pytest.approx(entry.embedding_parameters, rel=0.005)
        assert value(cells[5]) == pytest.approx(median(entry, "flops"), rel=0.005)
    else:
        assert cells[3:6] == ["107 k counted", "–", "–"]
    state = next(point.state_bytes for point in entry.decode if point.context == entry.context)
    assert value(cells[10]) == pytest.approx(state, rel=0.005)
    assert cells[11] == f"{len(entry.finished)} of {len(entry.runs)}"


def test_the_header_says_what_was_matched() -> None:
    head = rows(ranking(study()))[0]
    assert head[3] == "Parameters = matched within 0.18 %"
    assert head[5] == "FLOPs ≠ unmatched up to 32 %"
    assert head[6] == "Tokens = matched exactly"


def test_what_was_aimed_at_and_missed_is_not_called_matched() -> None:
    result = study()
    aims = tuple(Matched(f"training {name}", True, spread, tolerance) for name, spread, tolerance in (
        ("seconds", 0.59, 0.1), ("FLOPs", 0.03, 0.04), ("tokens", 0.05, 0.04)))
    tree = read(render(dataclasses.replace(result, budget=dataclasses.replace(result.budget, matched=aims))))
    head = rows(tree.all("table", "ranking")[0])[0]
    assert head[5:8] == ["FLOPs = matched within 3.0 %", "Tokens ≠ aimed at, missed by 5.0 %",
                         "Time ≠ aimed at, missed by 59 %"]
    assert len(tree.all("table", "ranking")[0].all("span", "matched")) == 1


def test_what_was_counted_is_said_not_to_be_learned() -> None:
    assert "What is counted is kept from the text, not learned" in ranking(study()).all("caption")[0].text()
    assert "counted" not in ranking(study(5)).text()
    assert "Numbers, counted107,412" in read(render(study())).text()


def test_letters_of_the_tied_column_stay_on_one_line() -> None:
    result = dataclasses.replace(study(3), tied_sets=(("transformer", "s4d"), ("s4d", "lstm")))
    assert "a b" in [each.text() for each in ranking(result).all("td", "unbroken")]


def test_commands_are_broken_between_words_alone() -> None:
    page = read(render(study()))
    command = next(each for each in page.all("pre", "copy") if each.raw() == study().command)
    assert [each.raw() for each in command.all("span", "word")] == study().command.split()


def test_a_quantity_without_a_column_stands_below_the_table() -> None:
    result = study()
    matched = (dataclasses.replace(result.budget.matched[0], quantity="layers", matched=True, spread=0.0),)
    page = read(render(dataclasses.replace(result, budget=dataclasses.replace(result.budget, matched=matched))))
    assert any(each.text() == "Outside the table: layers matched, exactly." for each in page.all("p", "small"))


def test_models_share_the_letters_of_their_sets() -> None:
    result = dataclasses.replace(study(3), tied_sets=(("transformer", "s4d"), ("s4d", "lstm")))
    assert [cells[2] for cells in rows(ranking(result))[1:]] == ["a", "a b", "b"]
    assert [letter(index) for index in (0, 25, 26)] == ["a", "z", "a2"]


def test_lost_runs_stand_in_the_row_and_with_their_reasons() -> None:
    result = unfinished(study(), ("lstm",))
    last = rows(ranking(result))[-1]
    assert last[0].startswith("lstm") and last[1] == "–" and last[-1] == "0 of 3 3 diverged"
    lost = next(table for table in read(render(result)).all("table")
                if table.all("caption")[0].text() == "Runs that did not finish")
    assert [row[-1] for row in rows(lost)[1:]] == [f"the loss was not finite at step {step}"
                                                   for step in (300, 301, 302)]


def test_a_pending_run_is_counted() -> None:
    result = study(2)
    runs = tuple(dataclasses.replace(run, status="pending", bits_per_byte=None) if run.index == 2 else run
                 for run in result.entries[0].runs)
    result = dataclasses.replace(result, entries=(dataclasses.replace(result.entries[0], runs=runs), result.entries[1]))
    assert "2 of 3 1 pending" in {cells[-1] for cells in rows(ranking(result))[1:]}
    lost = next(table for table in read(render(result)).all("table")
                if table.all("caption")[0].text() == "Runs that did not finish")
    assert [(row[1], row[-1]) for row in rows(lost)[1:] if "pending" in row] == [("3", "still to come")]


def test_the_forest_shows_each_model_minus_the_best_with_both_intervals() -> None:
    result = study()
    table = read(render(result)).all("table", "forest")[0]
    found = {cells[0]: cells for cells in rows(table)[1:]}
    for entry in result.entries[1:]:
        stored = next(each for each in result.differences if {each.first, each.second} == {"transformer", entry.name})
        shown = found[entry.name]
        assert float(shown[2].replace("−", "-")) == pytest.approx(-stored.over_seeds.mean, abs=0.0005)
        assert stored.over_seeds.low is not None and stored.over_documents.high is not None
        assert f"{-stored.over_seeds.low:+.3f}".replace("-", "−") in shown[3]
        assert f"{-stored.over_documents.high:+.3f}".replace("-", "−") in shown[4]
        assert shown[6] == ("tied" if stored.tied else "told apart")


def test_all_pairs_are_listed() -> None:
    tables = {table.all("caption")[0].text(): rows(table) for table in read(render(study(4))).all("table")}
    assert len(tables["Every pair of the study, in bits per byte"]) == 1 + 6


def test_every_run_and_every_configuration_is_in_the_page() -> None:
    result = study()
    page = read(render(result))
    blocks = {each.raw() for each in page.all("pre", "copy")}
    assert {entry.config for entry in result.entries} | {entry.repeat for entry in result.entries} <= blocks
    assert {result.command, result.study_config} <= blocks
    tables = {table.all("caption")[0].text(): rows(table) for table in page.all("table")}
    folders = [run.folder for entry in result.entries for run in entry.runs]
    shown = tables["Run i of every model saw the same data in the same order"]
    assert [row[-1] for row in shown[1:]] == folders


def test_protocol_data_machine_and_notes_are_in_the_page() -> None:
    result = study()
    text = read(render(result)).text()
    for said in (*result.protocol, *result.notes, result.corpus.sha256, result.corpus.tokenizer_sha256,
                 result.machine.processor,
                 result.machine.torch, "20 November 2026, 23:41 UTC"):
        assert said in text
