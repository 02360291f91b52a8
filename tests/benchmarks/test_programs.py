"""Programs in confinement: what passes, what ends them, what they cannot do, and that they cannot forge success."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from weft.benchmarks import programs
from weft.benchmarks.programs import Limits, require_running, run_program
from weft.confinement.guards import ALLOWED, ARCHITECTURES, CHECKED
from weft.core.errors import FailedError, UnsupportedError

QUICK = Limits(seconds=30)
"""More than any of them needs on a busy machine: what must end before is told by its outcome."""

UNHOOKED = """
import ctypes, gc, os, sys, types
for each in gc.get_objects():
    if isinstance(each, types.FunctionType) and each.__name__ == "heed":
        each.__globals__.update(REFUSED=("none",), WRITING=0)
libc = ctypes.CDLL(None, use_errno=True)

def done(*actions):
    "The numbers of the actions that the kernel lets pass."
    found = []
    for place, action in enumerate(actions):
        try:
            result = action()
        except OSError:
            continue
        if result != -1:
            found.append(place)
    return found
"""
"""Takes Python's own guard away, as any program can, so that only the kernel's are left."""


def outcome(source: str, *tests: str, setup: str = "", limits: Limits = QUICK) -> str:
    return run_program(source, tests or ("assert True",), setup, limits).outcome


@pytest.mark.parametrize(("source", "test"), [
    ("def f(x): return 2 * x", "assert f(2) == 4"),
    ("def sum(a, b): return a + b", "assert sum(10, 15) == 25"),
    ("def f(x): return (y * y for y in x)", "assert list(f([1, 2])) == [1, 4] and sum([1, 2]) == 3"),
    ("def f(x): return map(str, x)", "assert set(f((1, 2))) == {'1', '2'}"),
    ("import re\ndef f(s): return re.findall('[a-z]+', s)", "assert f('a1bc') == ['a', 'bc']"),
    ("import math, cmath, heapq, bisect\ndef f(): return math.pi, cmath.sqrt(-1), heapq.nsmallest(1, [2, 1])",
     "assert f() == (math.pi, 1j, [1])"),
    ("from collections import Counter, OrderedDict, defaultdict, deque, namedtuple\nT = namedtuple('T', 'a b')\n"
     "def f(): return Counter('aab'), OrderedDict(a=1), defaultdict(int, {(1,): 2}), deque([1]), T(1, 2)",
     "assert f() == ({'a': 2, 'b': 1}, {'a': 1}, {(1,): 2}, collections.deque([1]), (1, 2))"),
    ("from decimal import Decimal\nfrom fractions import Fraction\ndef f(): return Decimal('0.1'), Fraction(1, 3)",
     "assert f() == (decimal.Decimal('0.1'), fractions.Fraction(1, 3))"),
    ("import datetime, random, json, copy, functools, itertools, string, operator, statistics, dataclasses, typing\n"
     "@dataclasses.dataclass\nclass P:\n    x: int\n"
     "def f(): return datetime.date(2020, 1, 2), datetime.timedelta(1), json.loads(json.dumps([P(1).x]))",
     "assert f() == (datetime.date(2020, 1, 2), datetime.timedelta(1), [1])"),
    ("def f(x): return [x, -x, x + 0.5, [], {}, set(), frozenset([x]), b'ab', 'é\\ud800', None, True, 1j, range(3)]",
     "assert f(10 ** 50) == [10 ** 50, -10 ** 50, 10 ** 50 + 0.5, [], {}, set(), {10 ** 50}, b'ab', 'é\\ud800', None, "
     "True, 1j, range(3)] and type(f(1)[0]) is int and type(f(1)[10]) is bool"),
    ("def f(x): return x, -x, x - x", "import math\nassert math.isnan(f(math.inf)[2]) and f(math.inf)[1] == -math.inf"),
    ("import array\ndef f(x): return array.array('i', x)", "assert f([1]) == array.array('i', [1])"),
    ("class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\ndef f(pairs): return max(p.b for p in pairs)",
     "assert f([Pair(5, 24), Pair(1, 60)]) == 60 and Pair(1, 2).a == 1"),
    ("import sys\ndef f(x): return sys.getsizeof(x)", "assert f((1, 2)) == sys.getsizeof((1, 2))"),
    ("def f(x):\n    x.append(1)\n    return x", "assert f([0]) == [0, 1]"),
    ("if __name__ == '__main__':\n    print('x' * 10_000_000)\n    f = input", "assert callable(f)"),
    ("def f(x, kind): return [each for each in x if isinstance(each, kind)]",
     "assert f((4, 7.7, 'a'), int) == [4] and f((4, 'a'), str) == ['a']"),
    ("def f(x, key): return sorted(x, key=key)", "assert f([-3, 2], abs) == [2, -3]"),
    ("def f(*a, k=0): return len(a) + k", "assert f(*[1, 2], k=3) == 5 and [f(n) for n in range(2)] == [1, 1]")])
def test_an_ordinary_program_passes(source: str, test: str) -> None:
    assert outcome(source, test) == "passed"


def test_a_setup_uses_the_program_s_classes() -> None:
    tree = ("class Node:\n    def __init__(self, n): self.n, self.left, self.right = n, None, None\n"
            "def height(t): return 0 if t is None else 1 + max(height(t.left), height(t.right))")
    setup = "five = 5\nroot = Node(1)\nroot.left = Node(2)\nroot.left.right = Node(3)"
    assert outcome(tree, "assert height(root) == 3", "assert height(root.left) == five - 3", setup=setup) == "passed"
    assert outcome(tree, "assert height(root) == 3", setup=setup.replace("left.right", "right")) == "AssertionError"


@pytest.mark.parametrize(("source", "found"), [
    ("f = lambda: 2", "AssertionError"), ("def", "SyntaxError"), ("import torch", "ModuleNotFoundError"),
    ("", "NameError"), ("f = 1", "TypeError"), ("def f(): return 1 / 0", "ZeroDivisionError"),
    ("import sys; sys.exit(0)", "SystemExit"), ("def f(): raise SystemExit", "SystemExit"),
    ("raise type('x y', (Exception,), {})", "ended"), ("raise type('passed', (Exception,), {})", "ended"),
    ("input()", "EOFError"), ("def f(): return f()", "RecursionError"),
    ("def f():\n    x = []\n    x.append(x)\n    return x", "RecursionError"),
    ("x = bytearray(10 << 30)", "MemoryError"), ("def f(): return 'x' * (17 << 20)", "ValueError"),
    ("files = [open('/dev/null') for i in range(99)]", "OSError"), ("open('a', 'w')", "PermissionError"),
    ("import os; os.mkdir('/tmp/weft-never')", "PermissionError"), ("import os; os.fork()", "PermissionError"),
    ("import threading; threading.Thread(target=print).start()", "RuntimeError"),
    ("import subprocess; subprocess.run(['true'])", "PermissionError"),
    ("import os; os.kill(os.getppid(), 9)", "PermissionError"),
    ("import resource; resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))", "PermissionError"),
    ("import socket; socket.socket()", "PermissionError"), ("import ctypes; ctypes.CDLL(None)", "PermissionError")])
def test_what_ends_a_program_is_told_by_its_name(source: str, found: str) -> None:
    assert outcome(source, "assert f() == 1") == found


FORGED = {
    "ends its process": "import os; os._exit(0)", "ends Python": "def f(x): raise SystemExit(0)",
    "equals everything": "class E:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n"
                         "    __hash__ = None\nf = lambda x: E()",
    "a text that equals everything": "class E(str):\n    def __eq__(self, o): return True\nf = lambda x: E()",
    "a number that equals everything": "class E(int):\n    def __eq__(self, o): return True\n"
                                       "    def __index__(self): return 4\nf = lambda x: E(3)",
    "other built-ins": "import builtins\nbuiltins.AssertionError = builtins.compile = builtins.exec = print\n"
                       "f = lambda x: 3",
    "a trace": "import sys\ndef t(frame, event, arg):\n    frame.f_locals.update(found='passed'); return t\n"
               "sys.settrace(t); sys.setprofile(t)\nf = lambda x: 3",
    "frames": "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
              "        frame.f_globals['verdict'] = lambda *a: 'passed'\n"
              "        frame.f_globals['_tell'] = lambda *a: None\n        frame = frame.f_back\n    return 3",
    "secrets in memory": "import gc\ndef f(x):\n    for each in gc.get_objects():\n        if isinstance(each, dict):\n"
                         "            for text in [*each.values()]:\n"
                         "                if isinstance(text, str) and 'assert' in text and '== 4' in text: return 4\n"
                         "    return 3",
    "at its end": "import atexit, os\natexit.register(lambda: os._exit(0))\nraise SystemExit",
    "every descriptor": "import os\nfor fd in range(64):\n    try: os.write(fd, b'\"passed\"\\n{\"value\": true}\\n')\n"
                        "    except OSError: pass\nf = lambda x: 3",
    "answers in advance": "import os\nfor fd in range(3, 64):\n"
                          "    try: os.write(fd, b'{\"value\": null}\\n{\"value\": 4}\\n' * 9)\n"
                          "    except OSError: pass\nos._exit(0)",
    "an object of another process": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{\"value\": "
                                    "{\"made\": [\"os.system\", \"true\"]}}\\n' * 9)\n    except OSError: pass",
    "no JSON": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'[' * 60000 + b'\\n')\n"
               "    except OSError: pass\nos._exit(0)",
    "a pickle": "class P:\n    def __reduce__(self): return (exit, (0,))\nf = lambda x: P()",
    "signals": "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, lambda *a: None)\n"
               "    except (OSError, ValueError): pass\nf = lambda x: 3",
    "another name": "AssertionError = Exception\ndef f(x): raise type('passed', (BaseException,), {})()",
    "its own tests": "import sys\nsys.modules['unittest'] = sys.modules['json'] = None\nf = lambda x: 3",
    "memory of its own process": "open('/proc/self/mem', 'r+b')",
    "descriptors read": "import os\ndef f(x):\n    for fd in range(64):\n        try:\n"
                        "            os.set_blocking(fd, False)\n"
                        "            if b'assert' in os.read(fd, 9999): return 4\n"
                        "        except OSError: pass\n        finally:\n            try: os.set_blocking(fd, True)\n"
                        "            except OSError: pass\n    return 3"}


@pytest.mark.parametrize("source", FORGED.values(), ids=FORGED)
def test_a_program_that_is_wrong_forges_no_success(source: str) -> None:
    ran = run_program(source, ["assert f(2) == 4"], limits=QUICK)
    assert not ran.passed and ran.outcome != "time"


def test_no_test_lies_in_the_memory_of_the_program() -> None:
    """The process reads all of its own memory, with a text of its own that it must find and that no code spells."""
    source = ("def found(part):\n    wanted = part[::-1].encode()\n    with open('/proc/self/maps') as maps, "
              "open('/proc/self/mem', 'rb', 0) as memory:\n        total = 0\n        for line in maps:\n"
              "            span, mode = line.split()[:2]\n"
              "            low, high = (int(x, 16) for x in span.split('-'))\n"
              "            if mode.startswith('rw'):\n                try:\n                    memory.seek(low)\n"
              "                    total += memory.read(high - low).count(wanted)\n"
              "                except (OSError, OverflowError, ValueError): pass\n    return total > 1")
    tested = "assert found('terces-a-si-siht') == 'this-is-a-secret'"
    assert outcome(source, tested) in ("AssertionError", "PermissionError")


def test_a_program_that_waits_for_the_processor_is_not_late() -> None:
    """As on a machine with other work, where a sound program takes longer by the clock and not of the processor."""
    assert outcome("import time\ntime.sleep(1.5)", "assert 1", limits=Limits(seconds=1)) == "passed"


def test_time_and_processor_are_bounded() -> None:
    began = time.monotonic()
    ran = run_program("while True: pass", ["assert 1"], limits=Limits(seconds=1))
    assert (ran.passed, ran.outcome) == (False, "time") and 1 <= time.monotonic() - began < 15
    for late in ("import time\ntry:\n    time.sleep(60)\nfinally:\n    time.sleep(60)", "(a:=9**9)**a",
                 "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
                 "    except (OSError, ValueError): pass\nwhile True: pass",
                 "import os\nwhile True:\n    for fd in range(3, 64):\n        try: os.write(fd, b'x' * 9999)\n"
                 "        except OSError: pass"):
        assert outcome(late, limits=Limits(seconds=1)) in ("time", "ended")


@pytest.mark.parametrize(("actions", "means"), [
    ("""lambda: os.mkdir("weft-d"), lambda: os.symlink("/", "weft-l"), lambda: os.mkfifo("/tmp/weft-fifo"),
        lambda: open("/tmp/weft-file", "w"), lambda: os.open("/tmp", os.O_TMPFILE | os.O_RDWR),
        lambda: os.truncate(there, 0), lambda: os.unlink(there), lambda: os.rename(there, there + "2"),
        lambda: os.link(there, there + "2"), lambda: os.chmod(there, 0), lambda: os.utime(there),
        lambda: os.chown(there, 1, 1), lambda: os.setxattr(there, "user.a", b"1"), lambda: open(there, "r+"),
        lambda: libc.memfd_create(b"a", 0), lambda: libc.creat(there.encode(), 0o600)""", "seccomp"),
    ("""lambda: open(there), lambda: os.listdir(os.path.dirname(there)), lambda: open("/proc/1/environ"),
        lambda: open("/etc/passwd"), lambda: open("/proc/self/mem", "rb")""", "landlock"),
    ("""os.fork, lambda: libc.vfork(), lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: os.execv("/bin/true", ["true"]), lambda: libc.unshare(0x10000000), lambda: os.setsid(),
        lambda: os.setpgid(0, 0), lambda: libc.setns(0, 0), lambda: libc.personality(0x40000)""", "seccomp")])
def test_the_kernel_refuses_what_python_s_guard_would_let_pass(actions: str, means: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("whole")
    before = there.stat()
    ran = run_program(f"{UNHOOKED}\nthere = {str(there)!r}\nfound = done({actions})\n"
                      "if found: raise type('did_' + '_'.join(map(str, found)), (Exception,), {})",
                      ["assert found == []"], limits=QUICK)
    assert ran.passed or means not in ran.by, ran.outcome
    assert os.listdir(tmp_path) == ["there"] and there.read_text() == "whole"
    after = there.stat()
    assert (after.st_mode, after.st_mtime, after.st_uid) == (before.st_mode, before.st_mtime, before.st_uid)


def test_every_system_call_that_is_not_listed_fails() -> None:
    """All numbers up to 470 and some of the second table of x86, called with zeros: each is refused, none is made."""
    source = UNHOOKED + f"""
known = {allowed_numbers()}
def passed():
    found = []
    for number in [*range(470), *range(0x40000000, 0x40000010)]:
        if number not in known and number not in (335, 336):  # probes of functions, which no filter is asked about
            ctypes.set_errno(0)
            if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1:
                found.append(number)
    return found
"""
    ran = run_program(source, ["assert passed() == []"], limits=QUICK)
    assert ran.passed or "seccomp" not in ran.by, ran.outcome


def allowed_numbers() -> list[int]:
    place = list(ARCHITECTURES).index(os.uname().machine)
    return [number for each in (*ALLOWED.values(), *CHECKED.values()) if isinstance(number := each[place], int)]


def test_a_program_sees_no_environment_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SECRET", "x")
    asks = "import os, sys\ndef f(): return sorted(os.environ), os.getcwd(), [p for p in sys.path if 'site' in p]"
    assert outcome(asks, "assert f() == (['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED'], '/', [])") == "passed"
    stays = ("import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
             "    except (OSError, ValueError): pass\ndef f():\n    time.sleep(60)")
    memory = (1 << 29) + (os.getpid() << 12)  # by which its command line is known
    assert outcome(stays, "assert f()", limits=Limits(seconds=2, memory=memory)) == "time"
    if sys.platform == "linux":
        until = time.monotonic() + 20  # a process that has been killed takes a moment to end
        while [name for name in os.listdir("/proc") if name.isdecimal() and str(memory).encode() in command_of(name)]:
            assert time.monotonic() < until
            time.sleep(0.01)


def command_of(process: str) -> bytes:
    try:
        return Path("/proc", process, "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_judge_that_ends_without_a_verdict_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that the system has killed for its memory: its pipe is closed, and nothing has been written."""
    class Silent:
        def __init__(self, *_: object) -> None:
            pass

        def exchange(self, *_: object) -> bytes:
            return b""

        def end(self) -> None:
            pass

    monkeypatch.setattr(programs, "ConfinedProcess", Silent)
    assert run_program("x = 1", ["assert x"]) == programs.ProgramEnd(False, "ended", ())


def test_where_programs_do_not_run_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert set(require_running()) <= {"namespaces", "landlock", "seccomp"}
    monkeypatch.setattr(programs, "PROBE", ("import nothing", ()))
    with pytest.raises(FailedError, match=r"a program that must pass ends with 'ModuleNotFoundError'"):
        require_running()
    monkeypatch.setattr("weft.confinement.process.sys.executable", str(tmp_path / "none"))
    with pytest.raises(FailedError, match=r"run_programs: no process can be started \(No such file"):
        run_program("", [])
    monkeypatch.setattr(programs.os, "name", "nt")
    with pytest.raises(UnsupportedError, match=r"this system has no limits for processes, without which no program"):
        run_program("", [])
