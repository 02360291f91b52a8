"""Standard streams that are closed, full or endless, and options that an unset variable of a shell has emptied."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import weft as weft_package
from architecture.test_options import options
from weft.cli import failures
from weft.cli.chat import LONGEST_LINE, _lines
from weft.cli.main import WeftGroup, empty_path, path_options
from weft.core.errors import InputError


def started(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of a shell, in which ``weft`` is the command line of this source, in a process of its own."""
    line = line.replace("weft", f"'{sys.executable}' -m weft", 1)
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, cwd=folder,
                          env={**os.environ, "PYTHONPATH": str(Path(weft_package.__file__).parents[1])})


FULL = "error: writing failed: No space left on device. Free space, or write to another disk.\n"


@pytest.mark.parametrize(("line", "code", "error"), [
    ("weft list >&-", 0, ""), ("weft list <&- >&- 2>&-", 0, ""), ("weft list nothing 2>&-", 2, ""),
    ("weft list >/dev/full", 1, FULL), ("weft list nothing 2>/dev/full", 1, "")])
def test_a_closed_stream_is_none_that_fails(line: str, code: int, error: str, tmp_path: Path) -> None:
    told = started(line, tmp_path)
    assert (told.returncode, told.stderr) == (code, error)


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    """What is printed would be written into it."""
    (tmp_path / "part.py").write_text("import os\nopen('first', 'w').fileno() > 2 or os._exit(9)\nprint('printed')\n")
    told = started("weft list --plugin part.py <&- >&-", tmp_path)
    assert (told.returncode, told.stderr) == (0, "")
    assert (tmp_path / "first").read_text() == ""


def test_a_folder_that_was_deleted_is_told(tmp_path: Path) -> None:
    told = started("mkdir gone && cd gone && rmdir ../gone && exec weft list", tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == ("error: the current folder cannot be used (No such file or directory). Change to "
                           "another.\n")


def test_a_reader_that_has_gone_is_no_failure(tmp_path: Path) -> None:
    told = started("exec 3> >(exec true); sleep 0.2; weft list >&3; exit $?", tmp_path)
    assert (told.returncode, told.stderr) == (0, "")


def test_what_click_made_of_a_reader_that_has_gone_is_seen() -> None:
    def click() -> None:
        try:
            raise BrokenPipeError
        except OSError:
            sys.exit(1)

    read, write = os.pipe()
    os.close(read)
    kept = os.dup(1)
    os.dup2(write, 1)
    try:
        with pytest.raises(SystemExit) as caught:
            failures.run(click)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(write)
    assert caught.value.code == 0


@pytest.mark.parametrize(("arguments", "name"), [
    (["a.yaml", "--data", ""], "--data"), (["--out="], "--out"), (["prepare", "text", "--out", "", "--json"], "--out"),
    (["--data", "", "--out", "x"], "--data")])
def test_an_empty_path_is_refused(arguments: list[str], name: str) -> None:
    told = empty_path(arguments, {"--data", "--out"})
    assert told == f"{name}: the path is empty. Give one; the current folder is '.'."


@pytest.mark.parametrize("arguments", [[], [""], ["--prompt", ""], ["--data", "."], ["--data"], ["--out=x", ""]])
def test_what_is_no_empty_path(arguments: list[str]) -> None:
    assert empty_path(arguments, {"--data", "--out"}) is None


def test_a_command_refuses_an_empty_path(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("not to be trained on")
    told = started('weft train lstm --data "$NOTHING" --out run', tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == "error: --data: the path is empty. Give one; the current folder is '.'.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_every_option_that_takes_a_path_is_known() -> None:
    found = {option for option, by_command in options().items()
             if str(Path) in {kind for kind, _ in by_command.values()}}
    known = set[str]().union(*(path_options(lazy.load(name)) for name, lazy in WeftGroup.lazy.items()))
    assert found >= {"--out", "--data", "--plugin"} and known == found | {"--base", "--from"}


def test_an_endless_line_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\n  \ntwo\r\n" + "\0" * (LONGEST_LINE + 5)))
    lines = _lines()
    assert [next(lines), next(lines)] == ["one", "two"]
    with pytest.raises(InputError, match=r"standard input: a message of more than 1,048,576 characters\."):
        next(lines)
