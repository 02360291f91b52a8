"""Files of a run that others have written into: one message with a remedy, and every file stays as it was."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from training.tiny_runs import LSTM, tiny_run
from weft.core.errors import CheckpointError, ConfigError, UserError
from weft.training import RunConfig, parse_run, train


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path]:
    """A run of 6 steps, and its folder, whose last checkpoint is that of step 4."""
    folder = tmp_path_factory.mktemp("kept")
    run = parse_run(tiny_run(folder, LSTM, steps=6).dump(), ["report.eval_every=2", "report.keep=3"])
    train(run, folder / "run")
    shutil.rmtree(folder / "run/checkpoints/00000006")
    return run, folder / "run"


def content(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder with what it holds; a lock is no content."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in folder.rglob("*") if path.name != ".lock"}


def refusal(kept: tuple[RunConfig, Path], out: Path, damage: Callable[[Path], object]) -> str:
    """The message of a run that cannot go on after ``damage`` to its folder, of which nothing is changed."""
    run, folder = kept
    shutil.copytree(folder, out)
    damage(out)
    before = content(out)
    with pytest.raises(UserError) as caught:
        train(run, out, resume=True)
    assert content(out) == before
    return " ".join(str(caught.value).split())


@pytest.mark.parametrize("line", [
    "hello", "[]", "null", "{}", '{"event": "progress"}', '{"event": 3, "step": 1}', '{"event": "saved", "step": "x"}',
    '{"event": "saved", "step": true}', '{"event": "saved", "step": 1e400}', '{"event": "validated", "step": 1}',
    '{"event": "progress", "step": 1, "loss": []}', '{"event": "progress", "step": 1, "sources": 3}', "\0" * 40,
    '{"event": "saved", "step": ' + "9" * 5000 + "}", "[" * 90_000])
def test_a_line_of_the_metrics_that_is_no_event(kept: tuple[RunConfig, Path], tmp_path: Path, line: str) -> None:
    def add(out: Path) -> None:
        file = out / "metrics.jsonl"
        first, *rest = file.read_text().splitlines(keepends=True)
        file.write_text("".join([first, f"{line}\n", *rest]))

    told = refusal(kept, tmp_path / "run", add)
    assert re.search(r"metrics\.jsonl, line 2: this is no event of a run: .{1,200}\. Delete the line, or move the file "
                     "away: the run goes on without it.$", told), told


def test_metrics_that_are_no_file(kept: tuple[RunConfig, Path], tmp_path: Path) -> None:
    def folder(out: Path) -> None:
        (out / "metrics.jsonl").unlink()
        (out / "metrics.jsonl").mkdir()

    told = refusal(kept, tmp_path / "run", folder)
    assert "metrics.jsonl: the metrics of the run cannot be read (it is a folder, and only regular" in told
    assert told.endswith("Move them away: the run goes on without them.")


def test_without_its_metrics_a_run_goes_on_and_a_torn_line_is_left_out(kept: tuple[RunConfig, Path],
                                                                       tmp_path: Path) -> None:
    run, folder = kept
    shutil.copytree(folder, tmp_path / "run")
    file = tmp_path / "run/metrics.jsonl"
    file.unlink()
    assert train(run, tmp_path / "run", resume=True).steps == 6
    whole = file.read_text()
    file.write_text(whole + '{"event": "progr')
    assert train(run, tmp_path / "run", resume=True).steps == 6
    assert file.read_text().startswith(whole) and '"progr\n' not in file.read_text()


FIELDS = ("id", "config", "steps", "corpus", "corpus_sha256", "tokenizer_sha256", "compute", "software", "inexact",
          "ranks", "mesh", "code", "start")


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [True, -1.5, [[]], {"a": None}], ids=["true", "number", "list", "object"])
def test_a_field_of_another_type_in_the_record(kept: tuple[RunConfig, Path], tmp_path: Path, name: str,
                                               value: Any) -> None:
    def put(out: Path) -> None:
        record = json.loads((out / "run.json").read_text())
        (out / "run.json").write_text(json.dumps({**record, name: value}))

    told = refusal(kept, tmp_path / "run", put)
    place = re.escape(f"run.json: the file is damaged ({name}")
    inner = {"config": "problems? in the configuration: .*Did you mean|problems? in the configuration: .* a: ",
             "compute": r"run\.json: compute: cannot be read: matmul, threads"}
    assert re.search(place if name not in inner or not isinstance(value, dict) else inner[name], told), told


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"x"', "{}", "[" * 90_000, "\0\0"])
def test_a_record_that_is_none(kept: tuple[RunConfig, Path], tmp_path: Path, text: str) -> None:
    told = refusal(kept, tmp_path / "run", lambda out: (out / "run.json").write_text(text))
    assert re.search(r"run\.json: the file is damaged \(.+\)\. Put a copy of it back, or start the run again in "
                     "another folder.$", told), told


@pytest.mark.parametrize("kind", ["folder", "link to itself"])
def test_a_record_that_is_no_file(kept: tuple[RunConfig, Path], tmp_path: Path, kind: str) -> None:
    def put(out: Path) -> None:
        file = out / "run.json"
        file.unlink()
        file.mkdir() if kind == "folder" else file.symlink_to("run.json")

    told = refusal(kept, tmp_path / "run", put)
    assert re.search(r"run\.json: the file is damaged \((it is a folder|Too many levels of symbolic links)", told), told


@pytest.mark.parametrize("name", ["thesis.tex", "config.json", "model.safetensors"])
def test_a_folder_without_a_manifest_under_the_name_of_a_step_to_come(kept: tuple[RunConfig, Path], tmp_path: Path,
                                                                      name: str) -> None:
    """It is neither renamed nor found only hours later, when its step is to be saved."""
    def put(out: Path) -> None:
        (out / "checkpoints/00000006").mkdir()
        (out / "checkpoints/00000006" / name).write_text("{}")

    told = refusal(kept, tmp_path / "run", put)
    assert "checkpoints/00000006: nothing proves that a run wrote this folder: it has no MANIFEST.json" in told or (
        "checkpoints holds 00000006, where this run may save a checkpoint, and nothing proves that Weft wrote it. Move "
        "it away" in told), told


def test_what_no_step_will_be_saved_at_does_not_matter(kept: tuple[RunConfig, Path], tmp_path: Path) -> None:
    run, folder = kept
    shutil.copytree(folder, tmp_path / "run")
    for name in ("00000003", "00000007", "9" * 30, "٠٠٠٠٠٠٦٠"):
        (tmp_path / "run/checkpoints" / name).mkdir()
        (tmp_path / "run/checkpoints" / name / "thesis.tex").write_text("mine")
    assert train(run, tmp_path / "run", resume=True).steps == 6
    assert len(list((tmp_path / "run/checkpoints").glob("*/thesis.tex"))) == 4


def test_the_two_kinds_of_error(kept: tuple[RunConfig, Path], tmp_path: Path) -> None:
    """A damaged record is one of the checkpoint's files, a folder in the way is one of the given path."""
    run, folder = kept
    for name, error in (("run.json", CheckpointError), ("checkpoints/00000005", ConfigError)):
        out = tmp_path / error.__name__
        shutil.copytree(folder, out)
        (out / name).unlink(missing_ok=True)
        (out / name).mkdir()
        (out / name / "thesis.tex").write_text("mine")
        with pytest.raises(error):
            train(run, out, resume=True)
