"""Each means of confinement alone: what it refuses where the others are absent."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.confinement import guards
from weft.confinement.guards import ALLOWED, ARCHITECTURES, CHECKED

ALONE = """
import ctypes, fcntl, os, resource, signal, socket, struct, sys
sys.path.append(sys.argv[1])
from weft.confinement import guards
victim, outside = int(sys.argv[2]), sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)
calls = dict(tkill=200, tgkill=234, ioprio=251, queue=129, process_vm_writev=311, pidfd=434, setattr=314, kcmp=312)
locked = open(outside + "/there")

def fork():
    if os.fork() == 0:
        os._exit(0)

def raw(name, *arguments):
    if os.uname().machine != "x86_64":
        raise PermissionError
    if libc.syscall(calls[name], *arguments) == -1:
        raise OSError(ctypes.get_errno(), name)

actions = dict(
    kill=lambda: os.kill(victim, 9), tkill=lambda: raw("tkill", victim, 9), group=lambda: os.killpg(victim, 9),
    tgkill=lambda: raw("tgkill", victim, victim, 9), queue=lambda: raw("queue", victim, 9, bytes(128)),
    pidfd=lambda: signal.pidfd_send_signal(os.pidfd_open(victim), 9),
    prlimit=lambda: resource.prlimit(victim, resource.RLIMIT_CPU, (1, 1)),
    ptrace=lambda: libc.ptrace(16, victim, 0, 0) == -1 and (_ for _ in ()).throw(OSError(ctypes.get_errno(), "")),
    memory=lambda: open(f"/proc/{victim}/mem", "r+b", 0), read=lambda: open(f"/proc/{victim}/environ", "rb").read(),
    vm=lambda: raw("process_vm_writev", victim, 0, 0, 0, 0, 0), nice=lambda: os.setpriority(0, victim, 19),
    ioprio=lambda: raw("ioprio", 1, victim, 3 << 13), affinity=lambda: os.sched_setaffinity(victim, {0}),
    scheduler=lambda: os.sched_setscheduler(victim, 3, os.sched_param(0)),
    attributes=lambda: raw("setattr", victim, struct.pack("IIQiIQQQ", 48, 3, 0, 19, 0, 0, 0, 0), 0),
    owner=lambda: fcntl.fcntl(0, fcntl.F_SETOWN, victim), flock=lambda: fcntl.flock(locked, fcntl.LOCK_EX),
    lease=lambda: fcntl.fcntl(locked, fcntl.F_SETLEASE, 0), fork=fork, socket=lambda: socket.socket().close(),
    network=lambda: socket.create_connection(("127.0.0.1", 9), 1), write=lambda: open(outside + "/new", "w"),
    fifo=lambda: os.mkfifo(outside + "/fifo"), mode=lambda: os.chmod(outside, 0o755))
exec(sys.argv[4])
for name, action in actions.items():
    try:
        action()
    except (PermissionError, ProcessLookupError, BlockingIOError):
        print(name)
    except OSError as error:
        print(name if error.errno in (1, 3, 22, 101) else f"{name}: {error}")
"""
"""Applies some of the means, and prints what they refuse of what can be done to another process and to files. A write
to another's memory is of no bytes, which only a filter refuses."""

ALL = ["kill", "tkill", "group", "tgkill", "queue", "pidfd", "prlimit", "ptrace", "memory", "read", "vm", "nice",
       "ioprio", "affinity", "scheduler", "attributes", "owner", "flock", "lease", "fork", "socket", "network", "write",
       "fifo", "mode"]


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing, and must go on so."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def refused(means: str, victim: subprocess.Popen[bytes], folder: Path) -> list[str]:
    (folder / "there").write_text("whole")
    source = str(Path(guards.__file__).parents[2])
    done = subprocess.run([sys.executable, "-ISBc", ALONE, source, str(victim.pid), str(folder), means],
                          capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def state(victim: subprocess.Popen[bytes]) -> tuple[object, ...]:
    """What others can change about a process."""
    limits = resource.prlimit(victim.pid, resource.RLIMIT_CPU)
    return (victim.poll(), limits, os.getpriority(os.PRIO_PROCESS, victim.pid), os.sched_getaffinity(victim.pid),
            os.sched_getscheduler(victim.pid))


@pytest.mark.skipif(sys.platform != "linux", reason="these means are Linux's")
@pytest.mark.parametrize(("means", "passes"), [
    ("guards.hide() or guards.filter_calls() or sys.exit(print('absent'))", {"read"}),
    ("guards.confine() == ['landlock', 'seccomp'] or sys.exit(print('absent'))", set()),
    ("guards.separate() or sys.exit(print('absent'))\nchild = os.fork()\n"
     "if child: sys.exit(os.waitpid(child, 0)[1])\nguards.hide()",
     {"memory", "read", "flock", "lease", "fork", "socket", "write", "fifo", "mode", "owner", "vm"})],
    ids=["seccomp", "landlock and seccomp", "namespaces"])
def test_the_system_s_means_keep_other_processes_safe(means: str, passes: set[str], victim: subprocess.Popen[bytes],
                                                      tmp_path: Path) -> None:
    before = state(victim)
    found = refused(means, victim, tmp_path)
    assert found == ["absent"] or set(ALL) - set(found) <= passes, set(ALL) - set(found) - passes
    assert state(victim) == before
    if "write" in found:
        assert os.listdir(tmp_path) == ["there"]


def test_python_s_guard_refuses_what_python_s_functions_do(victim: subprocess.Popen[bytes], tmp_path: Path) -> None:
    before = state(victim)
    found = refused("guards.refuse_in_python()\nfor each in ('read', 'affinity', 'scheduler', 'nice', 'pidfd', 'fifo'):"
                    " del actions[each]", victim, tmp_path)
    assert {"kill", "group", "prlimit", "memory", "flock", "fork", "socket", "network", "write", "mode"} <= set(found)
    assert state(victim) == before and os.listdir(tmp_path) == ["there"]


def interpreted(program: bytes, machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What a filter returns for a system call."""
    steps = [program[start : start + 8] for start in range(0, len(program), 8)]
    data = {0: number, 4: ARCHITECTURES[machine] if architecture is None else architecture,
            **{16 + 8 * index: value for index, value in enumerate(arguments)}}
    held = at = 0
    while True:
        code, yes, no, value = (int.from_bytes(steps[at][low:high], "little")
                                for low, high in ((0, 2), (2, 3), (3, 4), (4, 8)))
        at += 1
        if code == guards.RETURN:
            return value
        if code == guards.LOAD:
            held = data.get(value, 0)
        else:
            at += yes if (held == value if code == guards.EQUAL else held & value) else no


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_a_computing_process_may_start_threads_and_no_process(machine: str) -> None:
    place, program = list(ARCHITECTURES).index(machine), guards.filter_program(machine, computing=True)
    clone, prctl = (guards.OF_THREADS[name][:2][place] or 0 for name in ("clone", "prctl"))
    refused = guards.ERRNO | guards.EPERM
    assert interpreted(program, machine, clone, guards.THREAD | 0x100) == guards.ALLOW
    assert interpreted(program, machine, clone, 17) == interpreted(program, machine, prctl, 22) == refused
    assert interpreted(program, machine, guards.CLONE3) == guards.ERRNO | guards.ENOSYS
    assert interpreted(program, machine, prctl, 15) == guards.ALLOW
    for name, numbers in guards.COMPUTING.items():
        if (number := numbers[place]) is not None:
            assert interpreted(program, machine, number, 0, 0, 0o101) == guards.ALLOW, name
    assert interpreted(program, machine, {"x86_64": 41, "aarch64": 198}[machine]) == refused, "socket"


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_one_folder_may_be_written(victim: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    means = (f"own = {str(tmp_path / 'own')!r}\n'landlock' in guards.confine((), own) or sys.exit(print('absent'))\n"
             "open(own + '/new', 'w').write('content')\nos.rename(own + '/new', own + '/kept')\n"
             "import threading\nthreading.Thread(target=lambda: None).start()")
    found = refused(means, victim, tmp_path)
    assert found == ["absent"] or {"write", "fifo", "mode", "fork", "socket", "kill", "read"} <= set(found)
    assert found == ["absent"] or os.listdir(tmp_path / "own") == ["kept"]


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_is_a_program_of_its_architecture(machine: str) -> None:
    """Interpreted here: every listed call passes, with its arguments checked, and no other."""
    place = list(ARCHITECTURES).index(machine)
    program = guards.filter_program(machine)
    allowed = {each[place] for each in ALLOWED.values()} - {None}
    checked = {number for each in CHECKED.values() if (number := each[:2][place]) is not None}
    assert len(allowed) == sum(each[place] is not None for each in ALLOWED.values()) and not allowed & checked

    def verdict(number: int, *arguments: int, architecture: int | None = None) -> int:
        return interpreted(program, machine, number, *arguments, architecture=architecture)

    refused = guards.ERRNO | guards.EPERM
    assert {number for number in range(600) if verdict(number, 1, 0xFF, 0xFF) == guards.ALLOW} == allowed
    assert {verdict(number, 0, 0x5401 if number == CHECKED["ioctl"][place] else 0) for number in checked} == {
        guards.ALLOW}
    names = ("openat", "fcntl", "ioctl", "prlimit64")
    openat, fcntl, ioctl, prlimit = (CHECKED[name][:2][place] or 0 for name in names)
    assert {verdict(openat, 0, 0, flags) for flags in (1, 2, 0o100, 0o2000)} == {refused}
    assert verdict(fcntl, 0, 8) == verdict(ioctl, 0, 0x5412) == refused
    assert verdict(prlimit, 5) == verdict(1 << 30) == refused
    assert verdict(0, architecture=0x40000003) == guards.KILL
