"""Programs in confinement: what passes, what ends them, and what they cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.benchmarks import programs
from weft.benchmarks.programs import Limits, require_running, run_program
from weft.core.errors import FailedError, UnsupportedError

QUICK = Limits(seconds=10)
"""More than any of them needs on a busy machine: what must end before is told by its outcome."""


@pytest.mark.parametrize(("source", "outcome"), [
    ("import heapq, re\nassert heapq.nsmallest(1, [2, 1]) == [1]", "passed"),
    ("with open('a', 'w') as f: f.write('x')\nimport os\nos.mkdir('d'); os.rename('a', 'd/b')\n"
     "assert open('d/b').read() == 'x' and os.listdir('d') == ['b']\nopen(os.devnull, 'w').write('x')", "passed"),
    ("import threading\nt = threading.Thread(target=print)\nt.start(); t.join()", "passed"),
    ("assert __name__ == '__main__' and input", "passed"),
    ("assert 1 == 2", "AssertionError"), ("def", "SyntaxError"), ("import torch", "ModuleNotFoundError"),
    ("import sys; sys.exit(0)", "SystemExit"), ("import os; os._exit(0)", "ended"),
    ("raise type('x y', (Exception,), {})", "ended"), ("input()", "EOFError"),
    ("def f(): return f()\nf()", "RecursionError")])
def test_a_program_passes_if_it_runs_to_its_end(source: str, outcome: str) -> None:
    ran = run_program(source, QUICK)
    assert (ran.outcome, ran.passed) == (outcome, outcome == "passed")


@pytest.mark.parametrize(("source", "outcome"), [
    ("import os\nwhile True: os.fork()", "PermissionError"),  # a fork bomb
    ("import subprocess; subprocess.run(['true'])", "PermissionError"),
    ("x = bytearray(10 << 30)", "MemoryError"),
    ("open('a', 'wb').write(b'x' * (2 << 20))", "OSError"),
    ("files = [open(f'{i}', 'w') for i in range(99)]", "OSError"),
    ("import os; os.kill(os.getppid(), 9)", "PermissionError"),
    ("import socket; socket.socket()", "PermissionError"),
    ("import ctypes; ctypes.CDLL(None)", "PermissionError")])
def test_what_a_program_asks_too_much_of_the_system_ends_it(source: str, outcome: str) -> None:
    assert run_program(source, QUICK).outcome == outcome


def test_an_endless_loop_ends_when_its_time_is_up() -> None:
    began = time.monotonic()
    ran = run_program("while True: pass", Limits(seconds=0.5))
    assert (ran.passed, ran.outcome) == (False, "time") and 0.5 <= time.monotonic() - began < 9
    late = "import time\ntry:\n    time.sleep(60)\nfinally:\n    time.sleep(60)"
    assert run_program(late, Limits(seconds=0.5)).outcome == "time"


@pytest.mark.parametrize("change", [
    "open({path!r}, 'w')", "import os; os.mkdir({path!r})", "open('a', 'w'); import os; os.rename('a', {path!r})",
    "import os; os.remove({there!r})", "import os; os.truncate({there!r}, 0)", "import os; os.chmod({there!r}, 0)",
    "import os; os.symlink({folder!r}, 's'); open('s/new', 'w')"])
def test_a_write_outside_its_folder_is_refused(change: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("whole")
    mode = there.stat().st_mode
    names = {"path": str(tmp_path / "new"), "there": str(there), "folder": str(tmp_path)}
    assert run_program(change.format(**names), QUICK).outcome == "PermissionError"
    assert os.listdir(tmp_path) == ["there"] and there.read_text() == "whole" and there.stat().st_mode == mode


def test_the_kernel_refuses_what_python_does_not_see(tmp_path: Path) -> None:
    """Python raises no audit event for these: a FIFO is refused by Landlock, a process by the filter of calls. A
    process that neither confines is ended with its group."""
    fifo = run_program(f"import os; os.mkfifo({str(tmp_path / 'new')!r})", QUICK)
    assert fifo.outcome == "PermissionError" or "landlock" not in fifo.by
    forked = run_program("import _posixsubprocess as p, os\nread, write = os.pipe()\n"
                         "p.fork_exec([b'/bin/sleep', b'60'], [b'/bin/sleep'], True, (), None, None, -1, -1, -1, -1, "
                         "-1, -1, read, write, False, False, 0, None, None, None, -1, None, False)", QUICK)
    assert forked.outcome in ("PermissionError", "BlockingIOError") or "seccomp" not in forked.by


LAYER = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
import confined
os.chdir(sys.argv[2])
outside = sys.argv[3]
if confined.{layer} is False:
    print("absent")
    sys.exit()

def fork():
    if os.fork() == 0:
        os._exit(0)

for name, action in dict(fork=fork, socket=lambda: socket.socket().close(), inside=lambda: open("a", "w").close(),
                         outside=lambda: open(outside + "/b", "w").close(), fifo=lambda: os.mkfifo(outside + "/f"),
                         killed=lambda: os.kill(os.getppid(), 0), mode=lambda: os.chmod(outside, 0o755)).items():
    try:
        action()
    except PermissionError:
        print(name)
"""
"""Applies one means of confinement, and prints what it refuses."""


@pytest.mark.parametrize(("layer", "refused"), [
    ("lock_folder(os.getcwd())", ["outside", "fifo", "killed"]),
    ("filter_calls()", ["fork", "socket", "killed", "mode"]),
    ("refuse_in_python(os.getcwd())", ["fork", "socket", "outside", "killed", "mode"])])
def test_each_means_alone_refuses_what_the_page_says(layer: str, refused: list[str], tmp_path: Path) -> None:
    """The kernel's may be absent, and before Linux 6.12 Landlock knows no signals."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    done = subprocess.run([sys.executable, "-ISBc", LAYER.format(layer=layer), str(programs.CONFINED.parent),
                           str(tmp_path / "in"), str(tmp_path / "out")], capture_output=True, text=True, check=False,
                          timeout=60)
    told = done.stdout.split()
    assert done.returncode == 0, done.stderr
    assert told == refused or (told == ["absent"] and "python" not in layer) or [*told, "killed"] == refused
    assert (tmp_path / "in" / "a").exists() or told == ["absent"]


def test_a_program_has_a_folder_of_its_own_and_no_one_else_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SECRET", "x")
    asks = ("import os\nfrom pathlib import Path\nhere = Path.cwd()\n"
            "assert set(os.environ) - {'LC_CTYPE'} == {'HOME', 'TMPDIR', 'LANG', 'PATH', 'PYTHONHASHSEED'}\n"
            "assert os.environ['HOME'] == os.environ['TMPDIR'] and Path(os.environ['HOME']).samefile(here)\n"
            "assert os.listdir() == ['program.py']\n")
    assert run_program(asks, QUICK).outcome == "passed"
    assert run_program("import os; open(os.getcwd() + '/a', 'w').write(os.getcwd())", QUICK).passed
    assert not [each for each in Path(programs.tempfile.gettempdir()).glob("weft-program-*")
                if each.stat().st_mtime > time.time() - 1 and not any(each.iterdir())], "folders are deleted"


def test_where_programs_do_not_run_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert set(require_running()) <= {"landlock", "seccomp"}
    monkeypatch.setattr(programs, "PROBE", "import nothing")
    with pytest.raises(FailedError, match=r"a program that must pass ends with 'ModuleNotFoundError'"):
        require_running()
    monkeypatch.setattr(programs.sys, "executable", str(tmp_path / "none"))
    with pytest.raises(FailedError, match=r"run_programs: no process can be started \(No such file"):
        run_program("")
    monkeypatch.setattr(programs.os, "name", "nt")
    with pytest.raises(UnsupportedError, match=r"this system has no limits for processes, without which no program"):
        run_program("")
