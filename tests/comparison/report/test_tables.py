"""The figures of the tables are those of the study, rounded as stated."""

from __future__ import annotations

import dataclasses
import statistics

import numpy as np
import pytest
from scipy import stats

from comparison.report.fixture import study, unfinished
from comparison.report.reading import Node, read, rows
from weft.comparison.power import reaches
from weft.comparison.report import render
from weft.comparison.report.ranking import interval_of
from weft.comparison.results import StudyModel
from weft.comparison.study_result import Matched, StudyResult
from weft.drawing.numbers import decimals_of

SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "s": 1.0}


def ranking(result: StudyResult) -> Node:
    return read(render(result)).all("table", "ranking")[0]


def value(shown: str) -> float:
    """Of a number with thousands and a unit."""
    number, _, unit = shown.partition(" ")
    return float(number.replace(",", "")) * SCALE[unit]


def median(entry: StudyModel, name: str) -> float:
    return statistics.median(float(getattr(run, name)) for run in entry.finished)


def test_every_number_of_the_main_table() -> None:
    result = study()
    head, *body = rows(ranking(result))
    assert [cell.split(" =")[0].split(" ≠")[0] for cell in head[4:]] == [
        "Parameters", "Body + embeddings", "FLOPs", "Tokens", "Time", "Tokens/s", "Peak memory", "State",
        "Runs finished"]
    ranked = sorted(result.entries, key=lambda entry: entry.bits_per_byte or 0.0)
    for cells, entry in zip(body, ranked, strict=True):
        assert cells[0].startswith(entry.name)
        check_row(cells, entry)


def check_row(cells: list[str], entry: StudyModel) -> None:
    interval = interval_of(entry, 0.95)
    assert interval is not None and interval.low is not None and interval.high is not None
    half = (interval.high - interval.low) / 2
    places = decimals_of(half)
    spread = f"±{half:.{places}f}" if half else "no spread"
    assert cells[1].split() == f"{interval.mean:.{places}f} {spread}".split()
    assert value(cells[2]) == pytest.approx(np.exp(np.mean([run.loss for run in entry.finished])), rel=0.005)
    shown = {5 + at: name for at, name in enumerate(("", "", "tokens", "seconds", "tokens_per_second",
                                                     "peak_memory_bytes"))}
    for column in (7, 8, 9, 10):
        # Three significant digits: half a unit of the third is at most half a percent.
        assert value(cells[column]) == pytest.approx(median(entry, shown[column]), rel=0.005)
    if entry.trainable:
        body, embeddings = cells[5].split(" + ")
        assert value(cells[4]) == pytest.approx(entry.parameters, rel=0.005)
        assert value(body) == pytest.approx(entry.parameters - entry.embedding_parameters, rel=0.005)
        assert value(embeddings) == pytest.approx(entry.embedding_parameters, rel=0.005)
        assert value(cells[6]) == pytest.approx(median(entry, "flops"), rel=0.005)
    else:
        assert cells[4:7] == ["107 k counted", "–", "–"]
    state = next(point.state_bytes for point in entry.decode if point.context == entry.context)
    assert value(cells[11]) == pytest.approx(state, rel=0.005)
    assert cells[12] == f"{len(entry.finished)} of {len(entry.runs)}"


def test_the_header_says_what_was_matched() -> None:
    head = rows(ranking(study()))[0]
    assert head[4] == "Parameters = matched within 0.18 %"
    assert head[6] == "FLOPs ≠ unmatched up to 32 %"
    assert head[7] == "Tokens = matched exactly"


def test_what_was_aimed_at_and_missed_is_not_called_matched() -> None:
    result = study()
    aims = tuple(Matched(f"training {name}", True, spread, tolerance) for name, spread, tolerance in (
        ("seconds", 0.59, 0.1), ("FLOPs", 0.03, 0.04), ("tokens", 0.05, 0.04)))
    tree = read(render(dataclasses.replace(result, budget=dataclasses.replace(result.budget, matched=aims))))
    head = rows(tree.all("table", "ranking")[0])[0]
    assert head[6:9] == ["FLOPs = matched within 3.0 %", "Tokens ≠ aimed at, missed by 5.0 %",
                         "Time ≠ aimed at, missed by 59 %"]
    assert len(tree.all("table", "ranking")[0].all("span", "matched")) == 1


def test_what_was_counted_is_said_not_to_be_learned() -> None:
    caption = ranking(study()).all("caption")[0].text()
    assert "What is counted is kept from the text, not learned" in caption
    assert "kneser-ney-5 is counted, not trained: it read 12,288,000 tokens in 11.5 s." in caption
    assert "over the models that gradients train" in caption
    assert "counted" not in ranking(study(5)).text()
    assert "gradients" not in ranking(study(5)).text()
    assert "Numbers, counted107,412" in read(render(study())).text()


def test_letters_stay_on_one_line() -> None:
    result = dataclasses.replace(study(3), tied_sets=(("transformer", "s4d"), ("s4d", "lstm")))
    assert "a b" in [each.text() for each in ranking(result).all("td", "unbroken")]


def test_commands_are_broken_between_words_alone() -> None:
    page = read(render(study()))
    command = next(each for each in page.all("pre", "copy") if each.raw() == study().command)
    assert [each.raw() for each in command.all("span", "word")] == [
        word for word in study().command.split() if "-" in word]


def test_a_quantity_without_a_column_stands_below_the_table() -> None:
    result = study()
    matched = (dataclasses.replace(result.budget.matched[0], quantity="layers", matched=True, spread=0.0),)
    page = read(render(dataclasses.replace(result, budget=dataclasses.replace(result.budget, matched=matched))))
    assert any(each.text() == "Outside the table: layers matched, exactly." for each in page.all("p", "small"))


def test_models_share_the_letters_of_their_sets() -> None:
    result = dataclasses.replace(study(3), tied_sets=(("transformer", "s4d"), ("s4d", "lstm")))
    assert [cells[3] for cells in rows(ranking(result))[1:]] == ["a", "a b", "b"]


def test_every_row_shows_all_the_learning_rates_that_its_runs_chose_and_flags_an_edge() -> None:
    first = {cells[0].split()[0]: cells[0] for cells in rows(ranking(study()))[1:]}
    assert first["transformer"].endswith("learning rate 0.003")
    assert first["s4d"].endswith("learning rate 0.001, 0.003")
    assert first["lstm"].endswith("learning rate 0.003, at the edge")
    assert "learning rate" not in first["kneser-ney-5"]
    assert "At the edge: the best learning rate" in ranking(study()).text()
    assert "At the edge" not in ranking(study(2)).text()


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


def test_the_forest_shows_each_model_minus_the_best_with_its_interval() -> None:
    result = study()
    table = read(render(result)).all("table", "forest")[0]
    found = {cells[0]: cells for cells in rows(table)[1:]}
    for entry in result.entries[1:]:
        stored = next(each for each in result.differences if {each.first, each.second} == {"transformer", entry.name})
        shown = found[entry.name]
        assert float(shown[2].replace("−", "-")) == pytest.approx(-stored.over_seeds.mean, abs=0.0005)
        assert stored.over_both.low is not None and stored.over_both.high is not None
        assert f"{-stored.over_both.low:+.3f}".replace("-", "−") in shown[3]
        assert f"{-stored.over_both.high:+.3f}".replace("-", "−") in shown[3]
        assert shown[5] == ("not told apart" if stored.tied else "told apart")


def test_all_pairs_are_listed_with_both_errors_the_larger_one_and_what_pairing_does() -> None:
    result = study(4)
    tables = {table.all("caption")[0].text(): rows(table) for table in read(render(result)).all("table")}
    head, *body = tables["Every pair of the study, in bits per byte"]
    assert len(body) == 6
    assert head[2:5] == ["over both", "over seeds", "over documents"]
    assert head[5:10] == ["Standard error from run to run", "Standard error from document to document", "Larger",
                         "Correlation of runs of the same number", "Paired interval times Welch's"]
    for row in body:
        worse, _, better = row[0].partition(" − ")
        stored = next(each for each in result.differences if {each.first, each.second} == {worse, better})
        assert stored.seed_error is not None
        # Two significant digits: half a unit of the second is at most one part in twenty.
        assert float(row[5]) == pytest.approx(stored.seed_error, rel=0.05)
        assert float(row[6]) == pytest.approx(stored.document_error, rel=0.05)
        assert row[7] == ("runs" if stored.seed_error > stored.document_error else "documents")
        ours, theirs = ([run.bits_per_byte or 0.0 for entry in result.entries if entry.name == name
                         for run in entry.runs] for name in (worse, better))
        assert float(row[8].replace("−", "-")) == pytest.approx(np.corrcoef(ours, theirs)[0, 1], abs=0.006)
        paired = stats.ttest_rel(ours, theirs).confidence_interval()
        apart = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
        expected = (paired.high - paired.low) / (apart.high - apart.low)
        assert float(row[9]) == pytest.approx(expected, rel=0.05)


def test_what_so_many_runs_can_show_has_a_table() -> None:
    result = study()
    page = read(render(result))
    sections = [each.attributes["id"] for each in page.all("section") if "id" in each.attributes]
    assert sections[:4] == ["verdict", "worth", "results", "models"]
    table = page.all("table", "reach")[0]
    # Four degrees of freedom, and fifteen pairs.
    critical = ["6.25 to 17.3", "4.12 to 6.25", "3.38 to 3.95"]
    assert [stats.t.isf(0.05 / 30, freedom) for freedom in (4, 2, 8, 18, 9)] == pytest.approx(
        [6.25, 17.3, 4.12, 3.38, 3.95], abs=0.05)
    assert [row[1] for row in rows(table)[1:]] == critical
    assert [row[0] for row in rows(table)[1:]] == ["3 this study", "5", "10"]
    assert [float(row[2]) for row in rows(table)[1:]] == pytest.approx(
        [each.difference for each in result.detectable], rel=0.05)
    assert [float(row[3]) for row in rows(table)[1:]] == pytest.approx(
        [each.found for each in reaches(result)], rel=0.05)
    paired = study(test="paired")
    shown = rows(read(render(paired)).all("table", "reach")[0])
    assert shown[1][1] == "17.3"
    caption = read(render(paired)).all("table", "reach")[0].all("caption")[0].text()
    assert "For the t test of runs paired by their number at 95 % and 15 pairs of models" in caption
    single = rows(read(render(study(seeds=1))).all("table", "reach")[0])
    assert single[1] == ["1 this study", "–", "not known", "\u2013"]


def test_documents_that_stand_in_the_training_text_are_counted() -> None:
    result = study(2)
    assert "Of these also in the training textnone" in read(render(result)).text()
    corpus = dataclasses.replace(result.corpus, duplicated_documents=3)
    page = read(render(dataclasses.replace(result, corpus=corpus)))
    assert "3 of 61 documents" in [each.text() for each in page.all("span", "flag")]


def test_every_run_and_every_configuration_is_in_the_page() -> None:
    result = study()
    page = read(render(result))
    blocks = {each.raw() for each in page.all("pre", "copy")}
    shared = next(each for each in blocks if each.startswith("model:"))  # the rest is a line that names the model
    own = [f"# {entry.name}\n" for entry in result.entries]
    for config, entry in zip(own, result.entries, strict=True):
        assert sorted((shared + config).splitlines()) == sorted(entry.config.splitlines())
    assert set(own) | {entry.repeat for entry in result.entries} <= blocks
    assert {result.command, result.study_config} <= blocks
    tables = {table.all("caption")[0].text(): rows(table) for table in page.all("table")}
    shown = tables["Run i of every model has the same seeds, of weights and of the order of the data"]
    figures = [f"{run.bits_per_byte:.4f}" for entry in result.entries for run in entry.runs]
    assert [row[4] for row in shown[1:]] == figures
    assert [row[5] for row in shown[1:] if row[0] == "lstm"] == ["0.003, at the edge"] * 3


def test_runs_of_other_seeds_are_not_said_to_have_the_same() -> None:
    result = study(2)
    other = dataclasses.replace(result.entries[1], runs=tuple(
        dataclasses.replace(run, seed=run.seed + 10) for run in result.entries[1].runs))
    page = read(render(dataclasses.replace(result, entries=(result.entries[0], other))))
    captions = [table.all("caption")[0].text() for table in page.all("table")]
    assert "Every run with its seeds, of weights and of the order of the data" in captions


def test_protocol_data_machine_and_notes_are_in_the_page() -> None:
    result = study()
    text = read(render(result)).text()
    for said in (*result.protocol, *result.notes, result.corpus.sha256, result.corpus.tokenizer_sha256,
                 result.machine.processor,
                 result.machine.torch, "20 November 2026, 23:41 UTC"):
        assert said in text
