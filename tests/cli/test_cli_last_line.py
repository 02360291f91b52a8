"""Whatever a command leaves unexplained is one line and an exit code; a terminal is told nothing that it would obey."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

import weft as weft_package
from fresh import fresh, weft
from weft.cli import failures, main
from weft.cli.main import LazyGroup
from weft.cli.options import guarded
from weft.cli.terminal import Terminal, console, on_terminal, visible
from weft.cli.text import table
from weft.core.errors import ConfigError

HOSTILE = "\x1b[2Ja\x1b]0;b\x07\r\x9b31m\x7f\u202ec"
SHOWN = r"\x1b[2Ja\x1b]0;b\x07\r\x9b31m\x7f\u202ec"


class PanicException(BaseException):
    """As libraries written in Rust raise it: no `Exception`."""


def ended(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and the message of a command that raises ``error``."""
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        failures.run(command)
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") <= 1
    return int(str(caught.value.code)), told.err.rstrip("\n")


@pytest.mark.parametrize("error", [RuntimeError("a\nb"), PanicException("a\nb"), RecursionError("a b")])
def test_an_internal_error_is_one_line_and_its_details_are_kept(error: BaseException, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch,
                                                                capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, message = ended(error, capsys)
    found = re.fullmatch(rf"internal error: {type(error).__name__}: a b \(details in (.*)\)", message)
    assert code == 1 and found, message
    details = Path(found[1]).read_text("utf-8")
    assert details.startswith("weft ") and "Traceback (most recent call last)" in details and "in command" in details


def test_details_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                        tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    assert ended(ValueError(), capsys) == (1, "internal error: ValueError (its details could not be written)")


@pytest.mark.parametrize("size", [1 << 50, 1 << 57, 1 << 60, 1 << 62])
@pytest.mark.parametrize("make", [np.arange, partial(torch.empty, dtype=torch.int64)], ids=["numpy", "torch"])
def test_a_size_that_no_memory_has_is_one_line(make: Callable[[int], object], size: int,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    """NumPy and PyTorch refuse sizes beyond their address space in other words than those beyond the memory."""
    with pytest.raises((MemoryError, ValueError, RuntimeError)) as caught:
        make(size)
    code, message = ended(caught.value, capsys)
    assert code == 1 and re.fullmatch("error: not enough memory .* Give a smaller model, batch or context.", message)


@pytest.mark.parametrize(("error", "code", "message"), [
    (OSError(36, "File name too long", "a" * 9_999), 2, "error: a+ \\.\\.\\. a+: File name too long. Check the path."),
    (OSError(5, "Input/output error"), 1, "error: reading or writing failed: Input/output error."),
    (OSError(28, "No space left on device"), 1, "error: writing failed: No space left on device. Free space, or .*"),
    (OSError(28, "No space left on device", "a.svg"), 1, "error: a.svg: writing failed: No space left on device. .*"),
    (MemoryError(), 1, "error: not enough memory \\(MemoryError\\). Give a smaller model, batch or context."),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, "error: not enough memory \\(RuntimeError: Def.*"),
    (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 1, "error: not enough memory .*"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (SystemExit(3), 3, ""),
])
def test_what_is_no_defect_says_so(error: BaseException, code: int, message: str,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    found, told = ended(error, capsys)
    assert found == code and re.fullmatch(message, told), told
    assert len(told) < 400


def test_a_reader_that_went_away_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as caught:
            failures.run(lambda: print("more than nobody reads" * 9_999))
        assert caught.value.code == 0
        stream.write("what is left goes nowhere")


def test_ctrl_c_while_a_command_is_imported(monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LazyGroup, "resolve_command", interrupted)
    with pytest.raises(SystemExit) as caught:
        main.app(["list"])
    assert caught.value.code == 130 and capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("module", ["weft.cli.main", "typer", "weft.cli.terminal", "weft.cli.listing"])
def test_ctrl_c_while_the_command_line_itself_is_imported(module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n\nclass Finder:\n    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n            os.kill(os.getpid(), signal.SIGINT)\n\n"
        "sys.meta_path.insert(0, Finder())\n", "utf-8")
    told = subprocess.run([sys.executable, "-m", "weft", "list"], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(weft_package.__file__).parents[1]}"})
    assert (told.returncode, told.stdout, told.stderr) == (130, "", "interrupted\n")


def test_ctrl_c_while_the_process_ends_is_silent(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, signal\natexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n", "utf-8")
    told = subprocess.run([sys.executable, "-m", "weft", "--version"], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(weft_package.__file__).parents[1]}"})
    assert (told.returncode, told.stderr) == (-signal.SIGINT, "") and told.stdout.startswith("weft ")


def test_a_plugin_that_fails_while_it_is_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from weft.core.registry import register\nfrom weft.feedforward.mlp import MLPConfig\n\n@register\n"
        "class Mine(MLPConfig):\n    \"\"\"Mine.\"\"\"\n    kind = 'mine'\n    def build(self, dims):\n"
        "        return 1 / 0\n", "utf-8")
    told = fresh(weft, "plan", "transformer", "model.blocks=[{kind: pre, layers: [mine]}]", "--plugin", "mine.py",
                 folder=tmp_path)
    assert told.returncode == 1
    assert re.fullmatch(r"error: the plugin mine\.py, line 9, failed: ZeroDivisionError: division by zero "
                        r"\(details in .*\)\n", told.stderr), told.stderr


@pytest.mark.parametrize("line", ["1 / 0", "raise SystemExit(3)", "raise KeyError", "import sys; sys.exit()"])
def test_a_plugin_that_fails_while_it_is_imported_is_named(refused: Callable[..., str], tmp_path: Path,
                                                           line: str) -> None:
    (tmp_path / "broken.py").write_text(line)
    assert f"the plugin '{tmp_path / 'broken.py'}' does not import: " in refused("list", "--plugin",
                                                                                  tmp_path / "broken.py")


def test_what_a_terminal_obeys_is_written_visibly() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("tab\t, line\n, é 世 😀 \u200f") == "tab\t, line\n, é 世 😀 \u200f"


@contextmanager
def terminal() -> Iterator[Callable[[], str]]:
    """Standard output and error are a terminal; what it was told so far."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as stream, redirect_stdout(stream), redirect_stderr(stream):
        yield lambda: b"".join(_read(master)).decode("utf-8").replace("\r\n", "\n")
    os.close(master)


def _read(terminal: int) -> Iterator[bytes]:
    """What was written to a terminal, which gives it out in pieces."""
    while select.select([terminal], [], [], 0.05)[0]:
        yield os.read(terminal, 65_536)


def test_no_text_reaches_a_terminal_as_it_is() -> None:
    with terminal() as told, on_terminal():
        typer.echo(HOSTILE)
        print(HOSTILE, file=sys.stderr)
        print("\udcff")
        assert told() == f"{SHOWN}\n{SHOWN}\n\\udcff\n"


def test_a_table_keeps_its_own_colours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with terminal() as told, on_terminal():
        out = console()
        rows = table("name", "value")
        rows.add_row(HOSTILE, "1")
        out.print(rows)
        out.print(HOSTILE, style="bold")
        text = told()
    assert "\x1b[1m" in text and "\x1b[2J" not in text and "\x9b" not in text and "\x07" not in text
    assert r"\x1b[2Ja" in text


def test_errors_of_a_command_reach_a_terminal_visibly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["weft", "list", "--\x1b[2J"])
    with terminal() as told:
        with pytest.raises(SystemExit):
            main.run()
        text = told()
    assert "\x1b[2J" not in text and r"\x1b[2J" in text


def test_a_pipe_and_a_file_get_text_as_it_is(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="utf-8") as stream, redirect_stdout(stream), on_terminal():
        assert not isinstance(sys.stdout, Terminal)
        print("\x1b[2Jé")
    assert (tmp_path / "out").read_text("utf-8") == "\x1b[2Jé\n"


def test_a_console_without_a_terminal_is_exact() -> None:
    out = console()
    out.file = io.StringIO()
    out.print("a\x1b[2Jb")
    assert "\x1b[2J" in out.file.getvalue()


def test_torchrun_repeats_the_error_as_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun reads the file; without one, it says that it knows no cause."""
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))

    @guarded(lambda given: "")
    def command() -> None:
        raise ConfigError(["training.clip: 0.25 on rank 1, and 0.5 on rank 0."])

    def report() -> str:
        return ChildFailedError("weft", {1: ProcessFailure(1, 4711, 2, str(file))}).format_msg()

    assert "To enable traceback see" in report()
    with pytest.raises(typer.Exit):
        command()
    assert "training.clip: 0.25 on rank 1, and 0.5 on rank 0." in report()
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "absent" / "error.json"))
    with pytest.raises(typer.Exit):
        command()
