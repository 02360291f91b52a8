"""Ctrl-C at the moments at which Python's own answer is lost, or becomes another error."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft.cli import failures
from weft.core.errors import DataError, from_ctrl_c

BEGIN = """
import os, signal, sys, time
sys.path.insert(0, {source!r})
from weft.cli.ctrl_c import CtrlC, begin_work
CtrlC().begin()
interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)
"""
WORK = BEGIN + "begin_work()\n"
"""Source of a process that answers Ctrl-C as a command does that has begun its work."""


def run(source: str, folder: Path, *, ignored: bool = False) -> tuple[int, str, str]:
    """The exit code and what was printed of Python source in a process of its own."""
    begun = source.replace("{source!r}", repr(str(Path(weft.__file__).parents[1])))
    answer = signal.SIG_IGN if ignored else signal.default_int_handler
    told = subprocess.run([sys.executable, "-c", begun], capture_output=True, text=True, check=False, cwd=folder,
                          timeout=60, preexec_fn=lambda: signal.signal(signal.SIGINT, answer))
    return told.returncode, told.stdout, told.stderr


def test_before_any_work_it_ends_the_process_at_once(tmp_path: Path) -> None:
    """In a finaliser, where Python's own answer is printed and forgotten."""
    source = "class Last:\n    def __del__(self): interrupt()\n\nlast = Last()\ndel last\nprint('goes on')"
    assert run(BEGIN + source, tmp_path) == (130, "", "interrupted\n")


@pytest.mark.parametrize("swallowed", ["", "try:\n    interrupt()\nexcept BaseException:\n    broken = True\n"])
def test_an_import_is_not_cut_in_two(tmp_path: Path, swallowed: str) -> None:
    """Neither an error of the import nor half a module comes of it, also where the module catches every error."""
    (tmp_path / "imported.py").write_text(
        f"import os, signal\ninterrupt = lambda: os.kill(os.getpid(), signal.SIGINT)\nbroken = False\n"
        f"{swallowed or 'interrupt()'}\nwhole = True\n")
    source = ("try:\n    import imported\n    time.sleep(30)\nexcept KeyboardInterrupt:\n"
              "    print(sys.modules['imported'].whole, sys.modules['imported'].broken)")
    assert run(WORK + source, tmp_path) == (0, "True False\n", "")


def test_twice_in_one_import_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "imported.py").write_text(
        "import os, signal, time\nfor _ in range(2):\n    os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n")
    assert run(WORK + "import imported", tmp_path) == (130, "", "interrupted\n")


def test_in_a_finaliser_it_is_not_forgotten(tmp_path: Path) -> None:
    source = ("class Last:\n    def __del__(self): interrupt()\n\ntry:\n    last = Last()\n    del last\n"
              "    time.sleep(30)\nexcept KeyboardInterrupt:\n    print('raised')")
    assert run(WORK + source, tmp_path) == (0, "raised\n", "")


def test_another_error_of_a_finaliser_is_told_as_ever(tmp_path: Path) -> None:
    code, _, told = run(WORK + "class Last:\n    def __del__(self): 1 / 0\n\nlast = Last()\ndel last", tmp_path)
    assert code == 0 and "Exception ignored in" in told and "ZeroDivisionError" in told


def test_a_process_in_the_background_goes_on_ignoring_it(tmp_path: Path) -> None:
    assert run(BEGIN + "interrupt()\nprint('goes on')", tmp_path, ignored=True) == (0, "goes on\n", "")


def made_of_an_interrupt(error: Exception) -> Exception:
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise error from None
    except Exception as caught:
        return caught


@pytest.mark.parametrize("error", [
    made_of_an_interrupt(ImportError("numpy._core.multiarray failed to import")),
    made_of_an_interrupt(ValueError("of the compiler")),
    ValueError("Error calling function `dump`: KeyboardInterrupt: "),
    RuntimeError("KeyboardInterrupt: <EMPTY MESSAGE>\n\nAt:\n  a.py(3): run")])
def test_what_a_library_makes_of_it_is_no_internal_error(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        failures.run(command)
    assert caught.value.code == 130 and capsys.readouterr().err == "interrupted\n"


def test_an_error_that_quotes_the_word_is_itself() -> None:
    assert not from_ctrl_c(DataError("line 3 has 'except KeyboardInterrupt:'", where="a.txt"))
    assert not from_ctrl_c(DataError("line 4 has 'KeyboardInterrupt: "))
    assert not from_ctrl_c(ValueError("except KeyboardInterrupt: pass"))
