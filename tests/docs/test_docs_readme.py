"""The README's tables come from the code, and its figures from the recorded study, which nothing has changed since."""

from __future__ import annotations

import dataclasses
import json
import runpy
import sys
from pathlib import Path

import pytest

from comparison.report.fixture import study
from fresh import Ended, fresh
from weft.comparison.folder import read_result
from weft.comparison.verdict import disagreement
from weft.core.strict_json import dumps

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECIPE = ROOT / "recipes" / "six_ages"
STUDIES = [path for path in sorted((ROOT / "recipes").rglob("result.json")) if '"tied_sets"' in path.read_text("utf-8")]


def write_with_tables(readme: str) -> None:
    """Write a README to standard output with the tables of the code."""
    sys.path.insert(0, "docs")
    from generate import with_tables

    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.write(with_tables(readme))


def with_tables(readme: str) -> Ended:
    """A README with the tables of the code, made in a process of its own: here other tests may have added parts."""
    return fresh(write_with_tables, readme, folder=ROOT)


def test_the_tables_are_those_of_the_code() -> None:
    made = with_tables(README)
    assert made.returncode == 0, made.stderr
    assert made.stdout == README, "run `python docs/generate.py`, which writes them"


def test_a_table_that_has_gone_from_the_readme_is_told() -> None:
    assert "the README has 0 tables named parts" in with_tables(README.replace("<!-- parts -->", "")).stderr


def test_the_recorded_study_is_the_one_that_stands_here() -> None:
    record = runpy.run_path(str(RECIPE / "record.py"))
    known = json.loads((RECIPE / "inputs.json").read_text(encoding="utf-8"))
    assert record["inputs"]() == known, "the study or a preset has changed; run `make figures` on an idle machine"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.parent.name)
def test_every_recorded_study_follows_from_its_own_runs(path: Path) -> None:
    assert disagreement(read_result(path.parent)) is None


def test_the_curves_are_those_of_the_recorded_study() -> None:
    drawn = runpy.run_path(str(RECIPE / "record.py"))["curves"](read_result(RECIPE)).alone()
    assert drawn == (ROOT / "docs" / "curves.svg").read_text("utf-8"), "run recipes/six_ages/record.py"


def test_a_curve_is_the_mean_of_the_runs_where_all_were_measured() -> None:
    result, course = study(3), runpy.run_path(str(RECIPE / "record.py"))["_course"]
    entry = next(entry for entry in result.entries if entry.trainable)
    first = entry.finished[0].curve[0].tokens
    values = [point.bits_per_byte for run in entry.finished for point in run.curve if point.tokens == first]
    assert course(entry)[0] == (first, pytest.approx(sum(values) / len(values), rel=1e-12))


def test_curves_end_at_the_figures_of_the_table() -> None:
    """The picture and the table above and below it show one measure: bits per byte of the whole test text."""
    course = runpy.run_path(str(RECIPE / "record.py"))["_course"]
    found = {entry.name: (course(entry)[-1][1], entry.bits_per_byte) for entry in read_result(RECIPE).entries}
    assert len(found) == 6
    for name, (end, figure) in found.items():
        assert end == pytest.approx(figure, abs=1e-12), name  # the same mean, to rounding


def test_the_first_screen_says_what_weft_is_and_is_not_and_shows_curves() -> None:
    screen = " ".join(README.split("\n## ")[0].split())
    assert "docs/curves.svg" in screen and "**What Weft is not.**" in screen
    assert "**`make run`** trains the models in the picture and takes six to eight minutes on two cores" in screen
    assert all(f"({link})" in screen for link in ("recipes", "benchmarks/README.md", "docs/quickstart.md"))
    assert len(README.split("\n## ")[0].split("```text\n")[1].split("```")[0].strip().split("\n")) == 4


TREEBANK_WORDS = 929_590
"""Words of its training text, each line's end among them, as the recipe counts them."""


def test_the_perplexities_of_the_penn_treebank_are_those_recorded() -> None:
    found = json.loads((ROOT / "recipes/penn_treebank/result.json").read_text("utf-8"))
    ngram, lstm, transformer = (found[name]["test_perplexity"] for name in ("ngram", "lstm", "transformer"))
    (times,) = {found[name]["training_tokens"] / TREEBANK_WORDS for name in ("lstm", "transformer")}
    assert [name for name in found if found[name].get("trials")] == ["transformer"]
    choosing = " ".join((ROOT / "docs/how_to_choose.md").read_text("utf-8").split())
    assert ("On the 0.93 million words of the [Penn Treebank](recipes/penn_treebank), which networks read "
            f"{times:.0f} times, the newer models win: the perplexity of a word is {ngram:.0f} for the n-gram model, "
            f"{lstm:.0f} for an LSTM and {transformer:.0f} for a Transformer, one run of each, of which the "
            "Transformer's learning rate alone was tuned.") in " ".join(README.split())
    assert (f"On the Penn Treebank's 0.93 million words, read {times:.0f} times, their perplexities are "
            f"{transformer:.2f} and {lstm:.2f}, where the 5-gram has {ngram:.2f}: one run of each, and only the "
            "Transformer's learning rate was tuned.") in choosing


def test_speeds_are_those_of_the_benchmarks_figures() -> None:
    """The benchmark works its own ratios out, of the fastest peer by each route."""
    results = ROOT / "benchmarks" / "results"
    found = runpy.run_path(str(ROOT / "docs" / "speeds.py"))["speeds"](results)
    for processor, name in (("AMD EPYC", "training_epyc.json"), ("Intel Xeon", "training_bfloat16.json")):
        trained = json.loads((results / name).read_text("utf-8"))
        for dtype in ("float32", "bfloat16"):
            known = min(each["speed"] for each in trained["comparison"] if each["dtype"] == dtype)
            assert known == pytest.approx(min(
                each.ratios[0] for each in found if each.processor == processor
                and each.what.startswith("training a Transformer") and each.what.endswith(dtype)))
    assert all(f"[{' and '.join(f'{ratio:.2f}' for ratio in each.ratios)}](benchmarks/results/{each.file})" in README
               for each in found)


def test_a_processors_speeds_are_not_those_of_another(tmp_path: Path) -> None:
    read = runpy.run_path(str(ROOT / "docs" / "speeds.py"))["_read"]
    (tmp_path / "training.json").write_text('{"processor": "Intel(R) Xeon(R) Processor"}')
    assert read(tmp_path, "training.json", "Intel Xeon")
    with pytest.raises(ValueError, match="stands for AMD EPYC"):
        read(tmp_path, "training.json", "AMD EPYC")


def row_of(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The README's row of a model of a made-up study."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))  # where generate.py finds its neighbours
    row: str = runpy.run_path(str(ROOT / "docs" / "generate.py"))["study_row"](
        next(entry for entry in study().entries if entry.name == name), study())
    return row


def test_no_row_of_the_readme_is_without_its_rates_and_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    row = "| lstm | decoder: lstm | 1.571 ± 0.012 | b | 0.003 (edge) | 1,603,244 | 12,288,000 |"
    assert row_of("lstm", monkeypatch) == row
    assert "| a | 0.001, 0.003 | " in row_of("s4d", monkeypatch)
    assert "| e |  | 107,412 counted | " in row_of("kneser-ney-5", monkeypatch)


def test_a_study_whose_figures_are_not_those_of_its_runs_is_not_recorded(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    result = study(2)
    wrong = dataclasses.replace(result, differences=(dataclasses.replace(result.differences[0], p_value=0.5),))
    (tmp_path / "result.json").write_text(dumps(wrong.to_json()))
    monkeypatch.setattr(sys, "argv", ["record.py", str(tmp_path)])
    before = (RECIPE / "result.json").read_bytes()
    assert runpy.run_path(str(RECIPE / "record.py"))["main"]() == 1
    assert "the difference of transformer and s4d does not follow from their runs" in capsys.readouterr().err
    assert (RECIPE / "result.json").read_bytes() == before


def test_a_changed_preset_has_another_hash_but_where_the_study_says_otherwise(tmp_path: Path) -> None:
    """Of a model as the study runs it: a comment changes nothing, nor does a value that the study gives itself."""
    digest = runpy.run_path(str(RECIPE / "record.py"))["_digest"]
    of_models = runpy.run_path(str(ROOT / "recipes" / "defaults.py"))["of_models"]
    written = {"as_is": "model: {d_model: 8}\ntraining: {clip_norm: 1}", "comment": "model: {d_model: 8}  # narrow\n"
               "training: {clip_norm: 1}", "own": "model: {d_model: 9}\ntraining: {clip_norm: 1}",
               "value": "model: {d_model: 8}\ntraining: {clip_norm: 2}"}
    for name, text in written.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    models = of_models({"models": {name: {"config": str(tmp_path / f"{name}.yaml"), "overrides": ["model.d_model=16"]}
                                   for name in written}})
    hashes = {name: digest(plain) for name, plain in models.items()}
    assert hashes["as_is"] == hashes["comment"] == hashes["own"] != hashes["value"]


def test_the_picture_is_small_and_a_png() -> None:
    picture = (ROOT / "docs" / "report.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) < 300_000


def test_python_block_of_the_readme_is_short() -> None:
    block = README.split("```python\n")[1].split("```")[0]
    assert len([line for line in block.splitlines() if line.strip()]) <= 15


def test_only_the_tested_torch_is_claimed() -> None:
    assert "Tested with PyTorch 2.13.0 and Python 3.11 on a CPU." in README
    assert json.loads((RECIPE / "result.json").read_text("utf-8"))["machine"]["torch"].startswith("2.13.0")
