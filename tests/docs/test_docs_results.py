"""The page of results says what the recipes recorded, and the page of troubles what the commands say."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fresh import fresh
from weft.cli.main import app

ROOT = Path(__file__).parents[2]
TROUBLES = re.findall(r"^```text\n\$ (weft .+)\n((?:.+\n)+)```$",
                      (ROOT / "docs/how_to_troubleshoot.md").read_text("utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def results() -> Any:
    """The module that makes the page, which stands beside the one of the studies."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        spec = importlib.util.spec_from_file_location("results", ROOT / "docs/results.py")
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return made


def test_every_recipe_is_on_the_page_with_its_findings_or_that_it_has_none(results: Any, tmp_path: Path) -> None:
    results.write_results(ROOT, tmp_path)
    page = (tmp_path / "results.md").read_text("utf-8")
    for names in results.ORDER.values():
        for name in names:
            assert f"](studies/{name}.md)**" in page
            for found in results.findings(ROOT, name):
                assert found in page
    recorded = [name for names in results.ORDER.values() for name in names if results.findings(ROOT, name)]
    assert page.count("No result is recorded yet.") == sum(map(len, results.ORDER.values())) - len(recorded)
    table = (tmp_path / "choosing.txt").read_text("utf-8")
    assert all(f"| {need} |" in table for need in results.NEEDS)


def test_sentences_follow_their_results(results: Any, tmp_path: Path) -> None:
    """Numbers by hand, so that what is computed is not compared with itself."""
    scores = {"old": {"test_perplexity": 141.186}, "new": {"test_perplexity": 81.104}}
    assert results.treebank(scores) == (
        "Test perplexity per word, one run of each: old 141.19, new 81.10; no learning rate was tuned.")
    scores["new"] |= {"trials": {"0.1": 90.0, "0.2": 95.0}}
    assert results.treebank(scores).endswith("new 81.10; the learning rate of new alone was tuned.")
    rounds = {"weft": {"rounds": [0.08, 0.1]}, "rival": {"rounds": [0.09, 0.095]}}
    timed = {"training": {"random_windows": {"loss": 1.8}},
             "speed": {"rows": rounds, "rival": "rival", "ratio": 1.03}}
    assert results.nanogpt(timed).endswith("in steps whose times are not told apart from those of rival.")
    rounds["weft"]["rounds"] = [0.07, 0.08]
    assert results.nanogpt(timed).endswith("at 1.03 times the speed of rival.")
    runs = {"0": {"trained": {"8": {"perplexity": 10.0}, "16": {"perplexity": 10.0}}},
            "1": {"trained": {"8": {"perplexity": 12.0}, "16": {"perplexity": 12.0}}}}
    rope = {seed: {"trained": {"8": {"perplexity": 10.0}, "16": {"perplexity": 40.0}},
                   **{way: {"tuned": {"16": {"perplexity": value}}} for way, value in (
                       ("linear", 15.0), ("ntk", 13.0), ("yarn", 14.0))}} for seed in "01"}
    table = {"0": {"trained": {"8": {"perplexity": 9.0}}}}
    said = results.lengths({"context": 8, "longer": 16, "lengths": [8, 16],
                            "models": {"alibi": runs, "rope": rope, "learned": table}})
    assert "grows least under alibi (11.0 to 11.0) and most under rope (10.0 to 40.0)" in said
    assert "stretched by ntk and trained a little further have 13.0 at 16 tokens, against 40.0" in said


def test_sentences_of_digits_and_generated_rows_follow_their_results(results: Any) -> None:
    assert results.digits({"depth": {"a": [4.0, 5.0], "b": [9.0, 9.5]}}) == (
        "Test errors run from 4.50 % (a) to 9.25 % (b).")
    assert "spread over 5.00 points" in results.digits({"depth": {"a": [4.0, 9.0], "b": [7.0, 7.5]}})
    longer = {"study": {"tasks": {"copying": {"length": 8}}}, "rows": [
        {"task": "copying", "contestant": name, "size": 4, "state_bytes": {"8": 9},
         "accuracy": {"8": near, "4096": far}}
        for name, near, far in (("a", [0.5, 0.6], [0.1, 0.2]), ("b", [1.0, 0.98], [0.9, 0.8]))]}
    assert results.generated_rows(longer) == (
        "Accuracy on copying, rows of 8 and of 4,096 tokens: b 99.0% and 85.0%, a 55.0% and 15.0%.")
    sizes = {"study": {"tasks": {"mqar": {"length": 8}, "pathfinder": {"size": 4}}}, "rows": [
        {"task": task, "contestant": "a", "size": size, "accuracy": {key: [value]}, "state_bytes": {key: state}}
        for task, size, key, value, state in (("mqar", 16, "8", 0.25, 1000), ("mqar", 32, "8", 0.75, 2000),
                                              ("pathfinder", 32, "0", 0.5, None))]}
    assert results.generated_rows(sizes) == (
        "Accuracy on mqar: a 75.0% with 2,000 bytes of state; on pathfinder: a 50.0%.")
    solved = {"study": {"tasks": {"mqar": {"length": 8}}}, "rows": [
        {"task": "mqar", "contestant": "a", "size": size, "accuracy": {"8": [value]}, "state_bytes": {"8": 100 * size}}
        for size, value in ((32, 0.99), (16, 0.92), (8, 0.5))]}
    assert results.generated_rows(solved) == "Accuracy on mqar: a 92.0% with 1,600 bytes of state.", "the smallest"


def test_a_result_that_a_sentence_cannot_read_is_refused_by_name(results: Any, tmp_path: Path) -> None:
    folder = tmp_path / "recipes/penn_treebank"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text('{"lstm": {}}')
    with pytest.raises(ValueError, match=r"recipes/penn_treebank/result.json: .* Correct `treebank` there"):
        results.finding(tmp_path, "penn_treebank")
    shutil.move(folder, tmp_path / "recipes/another")
    assert results.finding(tmp_path, "another") == "A result is recorded; its page has it."


def run_troubles(commands: list[str]) -> None:
    """Write the exit code and the output of every command as JSON."""
    done = [CliRunner().invoke(app, shlex.split(command)[1:]) for command in commands]
    Path("said.json").write_text(json.dumps([[each.exit_code, each.output] for each in done]), encoding="utf-8")


def test_every_message_on_the_page_of_troubles_is_what_its_command_says(tmp_path: Path) -> None:
    assert len(TROUBLES) > 5
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(ROOT / "LICENSE", tmp_path)
    done = fresh(run_troubles, [command for command, _ in TROUBLES], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for (command, shown), (code, said) in zip(TROUBLES, json.loads((tmp_path / "said.json").read_text("utf-8")),
                                              strict=True):
        text, wanted = " ".join(said.split()), " ".join(shown.split())
        assert code == 2, f"{command}: {text}"
        assert wanted.removeprefix("... ").removesuffix(" ...") in text, f"{command} says\n{said}"
        assert wanted.startswith("... ") or text.startswith(wanted.removesuffix(" ...")), command


def test_the_page_on_forms_has_the_recorded_figures_of_windows() -> None:
    found = json.loads((ROOT / "benchmarks/results/windows.json").read_text("utf-8"))
    said = " ".join((ROOT / "docs/forms.md").read_text("utf-8").split())
    native, banded = (found["cases"][name] for name in ("native", "banded"))
    assert (f"is {native['faster']:.1f} times as fast as dense attention by PyTorch's fused kernel, in "
            f"{native['memory']:.2f} of its memory; in plain PyTorch (`banded`) {banded['faster']:.1f} times, in "
            f"{banded['memory']:.1f} times the memory.") in said
    (every, dense), (grouped, fewer) = (
        [1000 * found["rows of 512, by key heads"][heads][f"{way} seconds"] for way in ("native", "dense")]
        for heads in ("8", "2"))
    assert (f"take {every:.0f} ms instead of {dense:.0f}, and with two key heads {grouped:.0f} instead of "
            f"{fewer:.0f}.") in said
