"""The pages of studies that `weft compare` has run: what stands in a README is what the record says."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from weft.comparison.folder import read_result
from weft.comparison.study import StudyConfig, read_study

RECIPES = Path(__file__).parents[2] / "recipes"
STUDIES = ("hippo/unstructured", "mixers/equal_parameters", "mixers/equal_flops", "mixers/equal_seconds")
KNOWN = RECIPES / "performer" / "rope"


@pytest.fixture(scope="module")
def made() -> Iterator[Any]:
    """The module that writes pages."""
    sys.path.insert(0, str(RECIPES / "compared"))
    yield import_module("page")
    sys.path.remove(str(RECIPES / "compared"))
    sys.modules.pop("page")


def test_a_page_has_the_figures_of_its_record(made: Any, tmp_path: Path) -> None:
    """Numbers by hand, from the plain record."""
    folder = tmp_path / "rope"
    folder.mkdir()
    shutil.copy(KNOWN / "result.json", folder)
    begin, end = made.marks("rope")
    (tmp_path / "README.md").write_text(f"# Before\n{begin}left over\n{end}after\n", encoding="utf-8")
    made.write(folder)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert page.startswith(f"# Before\n{begin}| model |") and page.endswith(f"{end}after\n") and "left over" not in page
    record = json.loads((KNOWN / "result.json").read_text(encoding="utf-8"))
    for entry in record["entries"]:
        bits = np.array([run["bits_per_byte"] for run in entry["runs"]])
        half = stats.t.ppf(0.975, len(bits) - 1) * bits.std(ddof=1) / np.sqrt(len(bits))
        (line,) = [row for row in page.splitlines() if row.startswith(f"| {entry['name']} |")]
        state = next(point["state_bytes"] for point in entry["decode"] if point["context"] == entry["context"])
        assert f"| {bits.mean():.4f} ± {half:.4f} |" in line
        assert f"| {entry['parameters']:,} | {state:,} | {entry['runs'][0]['flops']:.2e} |" in line
        for place, point in enumerate(entry["runs"][0]["by_length"]):
            far = np.mean([run["by_length"][place]["bits_per_byte"] for run in entry["runs"]])
            assert f"| {far:.4f} |" in line and f"windows of {point['context']} |" in page
    for pair in record["differences"]:
        better, worse = (pair["first"], pair["second"]) if pair["over_seeds"]["mean"] < 0 else (
            pair["second"], pair["first"])
        assert (f"* {better} and {worse} are not told apart" if pair["tied"] else
                f"* {better} is better than {worse} by {abs(pair['over_seeds']['mean']):.4f} (") in page
    assert "\n3 runs of each, 399,360 tokens each" in page
    assert {each.name for each in tmp_path.glob("*.svg")} == {"rope-training.svg", "rope-flops.svg"}
    assert all(f"]({each.name})" in page for each in tmp_path.glob("*.svg"))


def test_a_page_says_how_many_runs_chose_a_rate_beyond_which_none_was_tried(made: Any) -> None:
    """Of runs that chose among two rates or four, not all among as many, and of runs that had no choice."""
    record = json.loads((RECIPES / "hippo/unstructured/result.json").read_text(encoding="utf-8"))
    runs = [run for entry in record["entries"] for run in entry["runs"]]
    trial = runs[0]["trials"][0]
    for run in runs:
        run |= {"lr": 0.01, "trials": [{**trial, "lr": rate} for rate in (0.003, 0.01)]}
    assert made.rates(made.StudyResult.from_json(record)) == (
        f"Each run chose among the rates 0.003, 0.01. {len(runs)} of {len(runs)} runs chose the highest (legs, random, "
        "s4, s4d): a better one may lie beyond.")
    for run in runs:
        run["trials"] += [{**trial, "lr": rate} for rate in (0.001, 0.03)]
    assert made.rates(made.StudyResult.from_json(record)).endswith(". None chose the lowest or the highest.")
    record["entries"][1]["runs"][2]["lr"] = 0.001
    assert f"1 of {len(runs)} runs chose the lowest (random): a" in made.rates(made.StudyResult.from_json(record))
    runs[0]["trials"].append({**trial, "lr": 0.09})
    assert "among 4 to 5 of the rates 0.001, 0.003, 0.01, 0.03, 0.09." in made.rates(
        made.StudyResult.from_json(record))
    assert made.later(read_result(RECIPES / "hippo/unstructured"))[0].startswith(made.LATER)
    alone = made.rates(read_result(KNOWN))
    assert alone == "Every run has the rate 0.01; no other was tried, of no model."
    assert alone.removesuffix(".") in " ".join((KNOWN.parent / "README.md").read_text(encoding="utf-8").split())


def test_runs_that_have_not_finished_are_not_counted(made: Any) -> None:
    record = json.loads((KNOWN / "result.json").read_text(encoding="utf-8"))
    for entry in record["entries"]:
        entry["runs"][2] |= {"status": "pending", "bits_per_byte": None, "curve": [], "by_length": []}
    assert made.runs_of(made.StudyResult.from_json(record)) == "2 of 3 runs of each have finished"
    record["entries"][0]["runs"][1] |= {"status": "diverged", "bits_per_byte": None}
    assert made.runs_of(made.StudyResult.from_json(record)) == "1 to 2 of 3 runs of each have finished"


def test_a_page_says_what_each_model_read_where_they_differ(made: Any) -> None:
    """The tokens have a column of their own then, and the line below has the fewest and the most."""
    record = json.loads((KNOWN / "result.json").read_text(encoding="utf-8"))
    for place, entry in enumerate(record["entries"]):
        for run in entry["runs"]:
            run["tokens"] = 200_000 + 1_024 * place
    page = made.page(made.StudyResult.from_json(record), "rope")
    header, rule, *lines = page.splitlines()[:2 + len(record["entries"])]
    column = [each.strip() for each in header.split("|")].index("tokens")
    assert header.count("|") == rule.count("|") and rule.split("|")[column].strip() == "---:"
    assert {each.split("|")[1].strip(): each.split("|")[column].strip() for each in lines} == {
        entry["name"]: f"{200_000 + 1_024 * place:,}" for place, entry in enumerate(record["entries"])}
    assert f", 200,000 to {200_000 + 1_024 * (len(lines) - 1):,} tokens each" in page


def test_a_page_says_where_a_run_has_no_finite_figure(made: Any) -> None:
    """A recurrence that nothing keeps stable, on windows longer than those of training."""
    record = json.loads((KNOWN / "result.json").read_text(encoding="utf-8"))
    record["entries"][0]["runs"][1]["by_length"][-1]["bits_per_byte"] = float("inf")
    lines = made.table(made.StudyResult.from_json(record))
    said = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in lines[2:]}
    assert [name for name, far in said.items() if far == "not finite"] == [record["entries"][0]["name"]]
    assert all(float(far) > 0 for far in said.values() if far != "not finite")


def test_a_page_without_marks_is_refused(made: Any, tmp_path: Path) -> None:
    folder = tmp_path / "rope"
    folder.mkdir()
    shutil.copy(KNOWN / "result.json", folder)
    (tmp_path / "README.md").write_text("# Nothing\n", encoding="utf-8")
    with pytest.raises(ValueError, match="it has no lines <!-- rope -->"):
        made.write(folder)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "# Nothing\n"
    assert not list(tmp_path.glob("*.svg"))


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_is_made_of_the_record_and_the_record_of_the_study(made: Any, name: str) -> None:
    folder = RECIPES / name
    readme = (folder.parent / "README.md").read_text(encoding="utf-8")
    begin, end = made.marks(folder.name)
    said = readme.partition(begin)[2].partition(end)[0]
    if not (folder / "result.json").is_file():
        assert said == "No result is recorded yet.\n"
        return
    found = read_result(folder)
    assert said == made.page(found, folder.name), "run recipes/compared/page.py"
    for figure in made.pictures(found, folder.name):
        assert (folder.parent / f"{figure.name}.svg").read_text(encoding="utf-8") == f"{figure.alone()}\n"
    study = read_study(study=folder.with_suffix(".yaml")).model_dump(mode="json", exclude_none=True)
    recorded = yaml.safe_load(found.study_config)
    # A setting that the record does not have was not there yet, and had its default.
    recorded = {key: StudyConfig.model_fields[key].default for key in study if key not in recorded} | recorded
    widest, limit = recorded["trials"].pop("widest"), study["trials"].pop("widest")
    differing = {key for key in study.keys() | recorded.keys() if study.get(key) != recorded.get(key)}
    assert not differing, f"the study has changed in {differing}; run it again"
    assert (widest == 0) is any(note.startswith(made.LATER) for note in found.notes)
    told = f"run with `widest: {widest}`" in readme and f" has `widest: {limit}`" in readme.replace("have", "has")
    assert told or widest == limit, "the page does not say that the file has another setting than the record"


def test_the_page_of_performer_says_with_which_rates_it_was_run_and_would_be_now() -> None:
    """All else of the study is that of the record, which has two settings by the names that they had."""
    page = " ".join((KNOWN.parent / "README.md").read_text(encoding="utf-8").split())
    study = read_study(study=KNOWN.with_suffix(".yaml")).model_dump(mode="json", exclude_none=True)
    recorded = yaml.safe_load(read_result(KNOWN).study_config)
    recorded["measure"]["curve_points"] = recorded["measure"].pop("checkpoints")
    assert {key for key in study.keys() & recorded.keys() if study[key] != recorded[key]} == {"trials"}
    rates = [study["trials"]["learning_rates"], recorded["trials"]["values"]]
    assert rates == [[0.003, 0.01, 0.03], [0.01]]
    assert f"has `learning_rates: {rates[0]}` now" in page and f"was run with `learning_rates: {rates[1]}`" in page


def test_what_the_page_says_of_mixers_is_in_the_records() -> None:
    """Run by run: Mamba is ahead at equal tokens and FLOPs, attention at equal seconds, where it reads the most; what
    has gated DeltaNet in it is behind; attention alone loses on longer windows."""
    for kind, best in (("parameters", "mamba"), ("flops", "mamba"), ("seconds", "attention")):
        found = read_result(RECIPES / "mixers" / f"equal_{kind}")
        runs = {entry.name: entry.finished for entry in found.entries}
        bits = {name: [run.bits_per_byte or 0.0 for run in each] for name, each in runs.items()}
        for other in bits.keys() - {best}:
            assert all(a < b for a, b in zip(bits[best], bits[other], strict=True)), (kind, other)
        delta = [*bits["hybrid"], *bits["gated_delta_net"]]
        assert min(delta) > max(value for name in ("mamba", "attention", "rwkv7") for value in bits[name])
        tied = {frozenset((pair.first, pair.second)) for pair in found.differences if pair.tied}
        assert (frozenset(("attention", "rwkv7")) in tied) is (kind != "seconds")
        longer = {name: np.mean([run.by_length[2].bits_per_byte - run.by_length[1].bits_per_byte for run in each])
                  for name, each in runs.items()}
        if kind == "seconds":
            read = {name: each[0].tokens for name, each in runs.items()}
            assert 1.75 * max(read[name] for name in read if name != best) < read[best]
            assert max(longer, key=lambda name: longer[name]) == best and round(longer[best], 2) == 0.07
            assert all(longer[name] < 0 for name in longer if name != best)
            medians = [np.median([run.seconds for run in each]) for each in runs.values()]
            assert round(min(medians)) == 15 and round(max(medians)) == 19
        else:
            assert abs(longer["attention"]) < 0.02
