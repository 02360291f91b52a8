"""`weft train` on a terminal and elsewhere, and how it ends when it is told to stop."""

from __future__ import annotations

import io
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from weft.cli.live import showing
from weft.core.errors import TrainingError
from weft.training import Event, Notice, Progress, Saved, Started, Validated, Validation
from weft.training.folder import RunFolder

EVENTS: list[Event] = [
    Started(0, 1000, 20, 32, 5000, 600, "text"), Notice(0, "something [bold]unusual[/bold]"),
    Progress(5, 20, 2.5, 1.75, 1234.5, 3.0, 61.0, 1e-3, 0.5, mfu=0.25, resident_bytes=123_000_000),
    Validated(10, Validation(1.5, 2.25, 100, 90, "protocol"), 6.0), Saved(10, Path("checkpoints/00000010"))]


def shown(*, terminal: bool, capsys: pytest.CaptureFixture[str], width: int = 160) -> str:
    screen = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)
    with showing(quiet=False, console=screen) as listener:
        assert listener is not None
        for event in EVENTS:
            listener(event)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue() if terminal else capsys.readouterr().out


def test_a_terminal_gets_a_bar_with_the_latest_figures(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(terminal=True, capsys=capsys)
    for part in ("step 5/20", "25%", "01:01 left", "loss 2.5000 nats/token", "1.7500 bits/byte", "1,234 tokens/s",
                 "MFU 25.0%", "memory 123 MB", "validation 1.5000 bits/byte", "something [bold]unusual[/bold]",
                 "1,000 parameters, 20 steps of 32 tokens"):
        assert part in text, part
    assert "saved" not in text


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_step_bar_and_figures_whole(capsys: pytest.CaptureFixture[str], width: int) -> None:
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\n", shown(terminal=True, capsys=capsys, width=width))
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
    bar = next(line for line in lines if line.startswith("step 5/20") and "25%" in line)
    assert bar.endswith("01:01 left") and bar.count("\N{BOX DRAWINGS HEAVY HORIZONTAL}") >= 8 and len(bar) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in text and max(map(len, lines)) <= width
    figures = " ".join(" ".join(lines).split())
    assert "loss 2.5000 nats/token 1.7500 bits/byte 1,234 tokens/s MFU 25.0% memory 123 MB" in figures


def test_elsewhere_every_event_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(terminal=False, capsys=capsys).splitlines() == [event.line() for event in EVENTS]


def test_json_prints_the_result_and_nothing_else(weft: Any, workplace: Path, tmp_path: Path) -> None:
    told = weft("train", workplace / "tiny.yaml", "training.steps=1", "--out", tmp_path / "run", "--json")
    assert json.loads(told.out)["steps"] == 1
    assert told.err == ""


@pytest.mark.parametrize(("number", "code", "word"), [
    (signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"),
    (signal.SIGHUP, 143, "terminated")])
def test_a_signal_ends_the_command_with_its_own_code(
        weft: Any, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int,
        word: str) -> None:
    log = RunFolder.log

    def sent(folder: RunFolder, event: Event) -> None:
        log(folder, event)
        if isinstance(event, Progress) and event.step == 2:
            signal.raise_signal(number)

    monkeypatch.setattr(RunFolder, "log", sent)
    told = weft("train", workplace / "tiny.yaml", "report.log_every=1", "--out", tmp_path / "run")
    assert told.code == code
    assert told.err == f"{word}\n"
    assert max(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == "00000002"


def test_a_full_disk_is_a_message_and_exit_code_1(weft: Any, workplace: Path, tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: Any, **__: Any) -> Path:
        raise TrainingError("no room for the checkpoint.", where="run", remedy="Make room.")

    monkeypatch.setattr(RunFolder, "save", fill)
    told = weft("train", workplace / "tiny.yaml", "--out", tmp_path / "run")
    assert told.code == 1
    assert told.err == "error: run: no room for the checkpoint. No checkpoint had been saved yet. Make room.\n"


def test_a_run_that_diverges_says_at_which_step_and_what_to_do(weft: Any, workplace: Path, tmp_path: Path) -> None:
    told = weft("train", workplace / "tiny.yaml", "training.optimizer={kind: sgd, lr: 1e30}", "training.clip_norm=null",
                "--out", tmp_path / "run")
    assert told.code == 1
    assert re.fullmatch(r"error: diverged at step \d+: .* No checkpoint had been saved yet\. Lower training\.optimizer"
                        r"\.lr, lengthen training\.schedule\.warmup, or set training\.clip_norm\.\n", told.err)


def test_what_cannot_be_resumed_exactly_is_refused_unless_allowed(
        weft: Any, refused: Any, workplace: Path, tmp_path: Path) -> None:
    arguments = ("train", workplace / "tiny.yaml", "--out", tmp_path / "run")
    assert weft(*arguments).code == 0
    file = tmp_path / "run/run.json"
    content = json.loads(file.read_text())
    content["compute"]["torch_version"] = "1.0"
    file.write_text(json.dumps(content))
    assert "torch_version '1.0'" in refused(*arguments, "--resume")
    told = weft(*arguments, "--resume", "--allow-inexact")
    assert told.code == 0
    assert "Going on as allowed: the weights will not be those of an uninterrupted run." in told.out


def test_a_run_begins_from_a_folder_and_a_finished_one_goes_on(weft: Any, workplace: Path, tmp_path: Path) -> None:
    """By --from the model and tokenizer of a folder with the settings of another configuration; by a run's folder and
    --steps the same run, longer."""
    begun = weft("train", "transformer", "--from", workplace / "run", "--data", workplace / "text.txt", "--steps", "2",
                 "training.batch_size=2", "report.eval_batches=1", "--out", tmp_path / "second")
    assert begun.code == 0 and "starting from" in begun.out and "nothing is fresh" in begun.out, begun.err
    record = json.loads((tmp_path / "second/run.json").read_text())
    assert record["config"]["model"]["d_model"] == 8 and record["config"]["training"]["steps"] == 2
    longer = weft("train", tmp_path / "second", "--steps", "4")
    assert longer.code == 0 and "going on after 2 steps to 4 in place of 2, not as a run of that many" in longer.out
    assert json.loads((tmp_path / "second/run.json").read_text())["steps"] == 4
    lost = weft("train", "transformer", "--from", tmp_path / "nowhere")
    assert lost.code != 0 and "nowhere" in lost.err and "Traceback" not in lost.err
