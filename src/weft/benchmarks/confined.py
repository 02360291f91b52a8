"""The process in which `weft.benchmarks.programs` runs one program: started as a script, it limits itself, runs the
program, and reports.

Python's standard library alone is imported here, for the interpreter is started without any other package. The report
goes to the file descriptor that the first argument names: a line of JSON with the means of confinement in force, and
after it the token that came with the program if the program has run to its end, or the name of the exception that ended
it. The token cannot be known from the program's text, so ``os._exit(0)`` is no success.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import runpy
import struct
import sys
from pathlib import Path
from typing import Any

NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER = 38, 22, 2
"""Of prctl: PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER."""
RULESET, RULE, RESTRICT = 444, 445, 446
"""Landlock's system calls, the same on every architecture."""
WRITE_FILE, TRUNCATE = 1 << 1, 1 << 14
BY_VERSION = ((1, 0b1_1111_1111_0011), (2, 1 << 13), (3, TRUNCATE), (5, 1 << 15))
"""Landlock's rights to change and execute files, by the version that has them; reading is not among them."""
BENEATH = 1
EPERM, ENOSYS = 1, 38
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of the classic BPF in which filters of system calls are written."""
THREAD = 0x10000
"""CLONE_THREAD: a clone with it is a thread, not a process."""
X32 = 0x40000000
"""Numbers from here on are those of x86's second table."""
ARCHITECTURES = {
    "x86_64": (0xC000003E, 56, (
        41, 53, 57, 58, 59, 62, 90, 91, 92, 93, 94, 101, 109, 112, 129, 132, 155, 161, 164, 165, 166, 167, 168, 169,
        170, 175, 188, 189, 190, 200, 227, 234, 235, 246, 248, 250, 260, 261, 268, 272, 280, 297, 298, 304, 308, 310,
        311, 313, 321, 322, 323, 424, 425, 434, 452)),
    "aarch64": (0xC00000B7, 220, (
        5, 6, 7, 39, 40, 41, 51, 52, 53, 54, 55, 88, 97, 104, 105, 112, 117, 129, 130, 131, 138, 142, 154, 157, 161,
        170, 198, 199, 217, 219, 221, 224, 225, 240, 241, 265, 268, 270, 271, 273, 280, 281, 282, 424, 425, 434, 452))}
"""Of each architecture: its number, clone, and the calls that are refused: new processes and programs, sockets, signals
and other processes' memory, new sessions and namespaces, mounts, owners, modes and times of files, io_uring, BPF, keys,
the clock, modules of the kernel."""
CLONE3 = 435
REFUSED = ("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "os.killpg",
           "os.chmod", "os.chown", "os.chflags", "os.setxattr", "os.utime", "pty.spawn", "subprocess.Popen", "socket.",
           "ctypes.", "signal.pthread_kill", "syslog.", "os.startfile", "webbrowser.open")
"""Beginnings of the names of Python's audit events that are refused."""
PATHS = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.truncate": 1, "os.rename": 2, "os.link": 2, "os.symlink": 2}
"""Audit events whose first arguments are paths that must lie in the folder."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def limit(memory: int, seconds: int, file_bytes: int, files: int) -> None:
    """Limit what the system gives to this process, for good."""
    for what, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0),
                       (resource.RLIMIT_FSIZE, file_bytes), (resource.RLIMIT_NOFILE, files)):
        resource.setrlimit(what, (most, most))


def lock_folder(folder: str) -> bool:
    """Forbid by Landlock to change or execute any file outside ``folder``, TCP, and signals to other processes; False
    where the kernel has no Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = sum(bits for since, bits in BY_VERSION if version >= since)
    content = struct.pack("<QQQ", rights, 0b11, 0b11)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = libc.syscall(RULESET, content, ctypes.c_size_t(len(content)), 0)
    allowed = ((folder, rights), (os.devnull, rights & (WRITE_FILE | TRUNCATE)))
    for path, given in allowed:
        place = os.open(path, os.O_RDONLY)
        if libc.syscall(RULE, ruleset, BENEATH, struct.pack("<Qi", given, place), 0):
            return False
        os.close(place)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    done = bool(libc.syscall(RESTRICT, ruleset, 0) == 0)
    os.close(ruleset)
    return done


def filter_program(architecture: int, clone: int, refused: tuple[int, ...]) -> bytes:
    """The filter: other architectures' calls end the process, new processes and ``refused`` calls fail with EPERM."""
    def instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("<HBBI", code, yes, no, value)

    steps = [instruction(LOAD, 4), instruction(EQUAL, architecture, 1, 0), instruction(RETURN, KILL),
             instruction(LOAD, 0), instruction(AT_LEAST, X32, 0, 1), instruction(RETURN, ERRNO | EPERM),
             instruction(EQUAL, CLONE3, 0, 1), instruction(RETURN, ERRNO | ENOSYS),  # the C library then calls clone
             instruction(EQUAL, clone, 0, 4), instruction(LOAD, 16), instruction(ANY_BIT, THREAD, 0, 1),
             instruction(RETURN, ALLOW), instruction(RETURN, ERRNO | EPERM)]
    for number in refused:
        steps += [instruction(EQUAL, number, 0, 1), instruction(RETURN, ERRNO | EPERM)]
    return b"".join([*steps, instruction(RETURN, ALLOW)])


def filter_calls() -> bool:
    """Have the kernel refuse system calls by `filter_program`; False where it cannot, or the processor is not known."""
    known = ARCHITECTURES.get(platform.machine())
    if sys.platform != "linux" or known is None:
        return False
    libc, program = ctypes.CDLL(None, use_errno=True), filter_program(*known)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    return bool(libc.prctl(SET_SECCOMP, FILTER, header, 0, 0) == 0)


def refuse_in_python(folder: str) -> None:
    """Have Python itself refuse processes, sockets, foreign code, and changes of files outside ``folder``."""
    def inside(path: Any) -> bool:
        if isinstance(path, int):
            return True
        real = os.path.realpath(os.fsdecode(path))
        return real == os.devnull or real == folder or real.startswith(folder + os.sep)

    def heed(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(REFUSED):
            raise PermissionError(f"{event} is refused")
        paths = arguments[: PATHS.get(event, 0)]
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            paths = arguments[:1]
        if not all(inside(path) for path in paths):
            raise PermissionError(f"{event} outside the folder is refused")

    sys.addaudithook(heed)


def main() -> None:
    """Confine this process, run the program that standard input gives, and report."""
    report, memory, seconds, file_bytes, files = map(int, sys.argv[1:6])
    token, _, source = sys.stdin.buffer.read().decode("utf-8", "surrogatepass").partition("\n")
    folder = os.path.realpath(os.getcwd())
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    Path("program.py").write_text(source, encoding="utf-8", errors="replace")
    limit(memory, seconds, file_bytes, files)
    linux = sys.platform == "linux"
    by = ["landlock"] if linux and lock_folder(folder) else []
    if filter_calls():
        by.append("seccomp")
    else:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    refuse_in_python(folder)
    os.write(report, json.dumps(by).encode() + b"\n")
    sys.argv = ["program.py"]
    try:
        runpy.run_path("program.py", run_name="__main__")
    except BaseException as error:
        os.write(report, type(error).__name__[:80].encode("utf-8", "replace"))
        os._exit(1)
    os.write(report, token.encode())
    os._exit(0)


if __name__ == "__main__":
    main()
