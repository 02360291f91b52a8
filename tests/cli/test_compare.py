"""``weft compare``."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fresh import Fresh, fresh
from fresh import weft as command
from weft.cli.compare import _given
from weft.comparison.study import read_study

LSTM: dict[str, Any] = {"kind": "decoder", "d_model": 8, "context": 8, "blocks": [{"kind": "pre", "layers": ["lstm"]}]}
NGRAM: dict[str, Any] = {"kind": "ngram", "order": 3, "context": 8, "end": 256}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models, a text and a study's file."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "text.txt").write_text("".join(f"line {i % 17}: {i % 7} and {i % 5}\n" for i in range(300)), "utf-8")
    for name, model in (("lstm", LSTM), ("ngram", NGRAM)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"model": model}))
    (folder / "study.yaml").write_text(yaml.safe_dump({
        "models": {name: str(folder / f"{name}.yaml") for name in ("lstm", "ngram")}, "tokenizer": "bytes",
        "data": {"path": str(folder / "text.txt")}, "training": {"batch_size": 2}, "length": {"steps": 2},
        "trials": {"count": 1}, "measure": {"curve_points": 1, "contexts": [8], "decode_steps": 1, "new_tokens": 2,
                                            "resamples": 100}}))
    return folder


@pytest.fixture(scope="module")
def done(study: Path) -> str:
    """What a study of two runs tells, in the plain."""
    made = fresh(command, "compare", "--study", str(study / "study.yaml"), "--seeds", "2", "--threads", "1", "--out",
                 str(study / "out"), folder=study)
    assert made.returncode == 0, made.stderr
    return made.stdout


def test_the_tables_say_what_was_found(done: str, study: Path) -> None:
    for heading in ("Bits per byte", "Size, and state while decoding", "Cost of training", "old apart: ",
                    "What was matched"):
        assert heading in done
    assert re.search(r"^(lstm +ngram|ngram +lstm) +\d", done, re.MULTILINE)
    assert "training tokens" in done and "Detectable difference" in done
    assert f"report {study / 'out' / 'report.html'}" in done
    assert all(len(line) <= 100 for line in done.splitlines() if "% " not in line[:5])
    assert "100%" in done and "left" in done


def test_json_is_the_whole_result_and_a_finished_study_is_not_run_again(done: str, study: Path, weft: Any) -> None:
    found = weft("compare", "--study", study / "study.yaml", "--seeds", "2", "--threads", "1", "--out", study / "out",
                 "--json").json()
    assert [entry["name"] for entry in found["entries"]] == ["lstm", "ngram"]
    assert found["differences"][0]["over_documents"]["low"] is not None
    assert found["seeds"] == 2
    # Each run had a process of its own, whose memory is far from what the tests of a whole suite hold.
    assert all(0 < run["peak_memory_bytes"] < 2e9 for entry in found["entries"] for run in entry["runs"])


def test_the_report_is_made_again(done: str, study: Path, weft: Any) -> None:
    page = study / "out" / "report.html"
    page.unlink()
    assert f"wrote {page}" in weft("compare", "--report", study / "out").out
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")


@pytest.mark.parametrize(("arguments", "message"), [
    (["lstmm", "transformer", "--tokens", "1000"], "models.lstmm: config: 'lstmm' is neither a file nor a preset. Did "
     "you mean 'lstm'?"),
    (["lstm", "--tokens", "1000"], "1 model, and a comparison needs two"),
    (["lstm", "ngram"], "neither a budget nor a length of training"),
    (["lstm", "ngram", "--budget", "parameters"], "'parameters' is not a budget. Give KIND=AMOUNT"),
    (["lstm", "ngram", "--budget", "size=5"], "'parameters', 'flops', 'tokens', 'seconds' or 'state_bytes'"),
    (["lstm", "ngram", "--budget", "parameters=1e6"], "a budget of parameters does not say how long"),
    (["lstm", "ngram", "--tokens", "1000", "trials.cuont=3"], "Did you mean 'count'?"),
    (["--study", "missing.yaml"], "missing.yaml"),
    (["--report", "nowhere"], "there is no result of a study here"),
    (["lstm", "ngram", "--budget", "parameters=10", "--steps", "5"], "no width gives 10 parameters"),
])
def test_what_cannot_be_compared(refused: Callable[..., str], tmp_path: Path, arguments: list[str],
                                 message: str) -> None:
    assert message in refused("compare", *arguments, "--out", tmp_path / "out")


def test_a_number_of_trials_replaces_the_rates_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({
        "models": {"a": "lstm", "b": "s4d"}, "length": {"steps": 1},
        "trials": {"learning_rates": [0.1, 0.2, 0.3], "share": 0.5}}))
    trials = read_study(study=tmp_path / "study.yaml", given=_given(None, None, None, None, 2, None)).trials
    assert (trials.rates(0.01), trials.share) == ([0.01, 0.03], 0.5)


def test_a_study_without_a_finished_run_fails(study: Path, tmp_path: Path, weft: Any) -> None:
    wild = ["training.optimizer={kind: sgd, lr: 1e30}", "training.clip_norm=null"]
    found = weft("compare", study / "lstm.yaml", study / "lstm.yaml", "data.path=" + str(study / "text.txt"),
                 "tokenizer=bytes", "--steps", "6", "--seeds", "1", "--trials", "1", "training.batch_size=2", *wild,
                 "--threads", "1", "--out", tmp_path / "out")
    assert found.code == 1
    assert re.search(r"^error: lstm: no run of this study finished; the first: diverged at step \d+: ", found.err)
    assert re.search(r"^lstm-2 +1 +diverged", found.out, re.MULTILINE), "the tables are shown all the same"
    assert (tmp_path / "out" / "report.html").exists()


def test_ctrl_c_is_passed_on_and_the_study_can_go_on(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = Fresh(command, "compare", "--study", str(study / "study.yaml"), "length={steps: 3000}", "--threads", "1",
                    "--out", str(out), folder=tmp_path)
    process.wait_for("step")
    process.send(signal.SIGINT)
    ended = process.end()
    assert (ended.returncode, ended.stderr.strip()) == (130, "interrupted")
    assert list((out / "runs" / "lstm" / "0" / "run" / "checkpoints").iterdir()), "the run saved itself"
    assert not (out / "runs" / "lstm" / "0" / "result.json").exists()
