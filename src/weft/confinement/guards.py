"""Means by which a process confines itself for good, each of which the system may lack: limits, namespaces, Landlock,
a filter of system calls, Python's audit hooks.

Python's standard library alone is imported here, for a confined process is started without any other package.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

ARCHITECTURES: Mapping[str, int] = MappingProxyType({"x86_64": 0xC000003E, "aarch64": 0xC00000B7})
"""The numbers by which seccomp names them."""

ALLOWED: Mapping[str, tuple[int | None, int | None]] = MappingProxyType({
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215),
    "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "access": (21, None),
    "pipe": (22, None), "select": (23, None), "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233),
    "dup": (32, 23), "dup2": (33, None), "pause": (34, None), "nanosleep": (35, 101), "getitimer": (36, 102),
    "alarm": (37, None), "setitimer": (38, 103), "getpid": (39, 172), "exit": (60, 93), "wait4": (61, 260),
    "uname": (63, 160), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "readlink": (89, None),
    "umask": (95, 166), "gettimeofday": (96, 169), "getrlimit": (97, 163), "getrusage": (98, 165),
    "sysinfo": (99, 179), "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175),
    "getegid": (108, 177), "getppid": (110, 173), "getpgrp": (111, None), "getgroups": (115, 158),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132), "statfs": (137, 43), "fstatfs": (138, 44), "arch_prctl": (158, None),
    "gettid": (186, 178), "time": (201, None), "futex": (202, 98), "sched_getaffinity": (204, 123),
    "getdents64": (217, 61), "restart_syscall": (219, 128), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "epoll_wait": (232, None), "epoll_ctl": (233, 21),
    "newfstatat": (262, 79), "readlinkat": (267, 78), "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73),
    "set_robust_list": (273, 99), "epoll_pwait": (281, 22), "eventfd2": (290, 19), "epoll_create1": (291, 20),
    "dup3": (292, 24), "pipe2": (293, 59), "preadv": (295, 69), "getcpu": (309, 168), "getrandom": (318, 278),
    "membarrier": (324, 283), "statx": (332, 291), "rseq": (334, 293), "close_range": (436, 436),
    "faccessat2": (439, 439)})
"""System calls that are allowed whatever their arguments: name, and number on x86-64 and on ARM64 (None: it has none).

They are those that CPython 3.11 to 3.14 makes for programs that compute: memory, reading, the clock, waiting, its own
signal handlers. None creates, changes or locks a file, starts a process or thread, opens a socket, or takes a process's
number for anything but reading a limit of its own.
"""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""Flags of `open` that no confined process may give."""

IOCTLS = (0x5401, 0x5413, 0x5450, 0x5451)
"""TCGETS and TIOCGWINSZ (whether a file is a terminal), FIONCLEX, FIOCLEX."""
FCNTLS = (0, 1, 2, 3, 4, 1030)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC: no locks, leases, and owners to be signalled."""

CHECKED: Mapping[str, tuple[int | None, int | None, int, str, tuple[int, ...]]] = MappingProxyType({
    "open": (2, None, 1, "none of", (WRITING,)), "openat": (257, 56, 2, "none of", (WRITING,)),
    "ioctl": (16, 29, 1, "one of", IOCTLS), "fcntl": (72, 25, 1, "one of", FCNTLS),
    "prlimit64": (302, 261, 0, "one of", (0,))})
"""Calls that are allowed if the low half of an argument has none of some bits, or one of some values, or any of some
bits: name, number on x86-64 and on ARM64, which argument, the rule, and its values. Each of these arguments has 32 bits
in the kernel."""

COMPUTING: Mapping[str, tuple[int | None, int | None]] = MappingProxyType({
    "open": (2, None), "openat": (257, 56), "ftruncate": (77, 46), "fsync": (74, 82), "fdatasync": (75, 83),
    "fallocate": (285, 47), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, None),
    "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35), "pwritev": (296, 70),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "getpriority": (140, 141),
    "mbind": (237, 235), "get_mempolicy": (239, 236), "set_mempolicy": (238, 237), "mincore": (27, 232)})
"""Further calls of a process that computes with threads and may write in a folder: Landlock alone says which files."""
THREAD, NAMED = 0x10000, (15,)
"""CLONE_THREAD, without which `clone` makes a process, and PR_SET_NAME, by which libraries name their threads."""
OF_THREADS: Mapping[str, tuple[int | None, int | None, int, str, tuple[int, ...]]] = MappingProxyType({
    "clone": (56, 220, 0, "any of", (THREAD,)), "prctl": (157, 167, 0, "one of", NAMED)})
CLONE3, ENOSYS = 435, 38
"""The call whose flags a filter cannot see, and the answer upon which the C library takes `clone`."""


SET_DEATH_SIGNAL, SET_DUMPABLE, SET_SECCOMP, NO_NEW_PRIVILEGES, FILTER = 1, 4, 22, 38, 2
"""Of prctl: PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER."""
NAMESPACES = 0x10000000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x00020000
"""CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWNS."""
CAPABILITIES = 0x20080522
"""The version of the structures of capset."""
RULESET, RULE, RESTRICT, BENEATH = 444, 445, 446, 1
"""Landlock's system calls, the same on every architecture, and the kind of its rules for files."""
READ, WRITE = 0b1100, 0b100000110110010
"""Landlock's rights to read files and folders; and to write, truncate, make and remove ordinary ones."""
BY_VERSION = ((1, 0x1FFF), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
"""Landlock's rights on files, by the version that has them: all are withheld, but for reading in some folders."""
SYSTEM = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/share/zoneinfo", "/nix/store",
          "/gnu/store", "/etc/ld.so.cache", "/etc/localtime", os.devnull, "/dev/urandom")
"""Where libraries that Python's modules load lie, and what some of them read."""
EPERM, ALLOW, ERRNO, KILL = 1, 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
"""Instructions of the classic BPF in which filters of system calls are written."""
REFUSED = ("os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "os.chmod", "os.chown",
           "os.chflags", "os.setxattr", "os.utime", "os.remove", "os.rmdir", "os.mkdir", "os.rename", "os.link",
           "os.symlink", "os.truncate", "os.startfile", "os.lockf", "fcntl.lockf", "fcntl.flock", "pty.spawn",
           "subprocess.Popen", "socket.", "ctypes.", "resource.", "signal.pthread_kill", "syslog.", "webbrowser.open")
"""Beginnings of the names of Python's audit events that are refused."""


def limit(memory: int, seconds: int, files: int, written: int = 0) -> None:
    """Limit what the system gives to this process: bytes of its addresses, seconds of the processor, open files, and
    bytes of a file that it writes."""
    for what, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_NOFILE, files),
                       (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, written)):
        resource.setrlimit(what, (most, most))


def separate(folder: str | None = None, room: int = 0) -> bool:
    """Give this process namespaces of users, networks, mounts and IPC of its own, its next child one of processes, and
    a folder a file system of its own in memory with so many bytes; False where the system refuses that."""
    if sys.platform != "linux":
        return False
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None).unshare(NAMESPACES):
        return False
    for name, content in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(content)
    return folder is None or not ctypes.CDLL(None).mount(
        b"tmpfs", os.fsencode(folder), b"tmpfs", 2 | 4, f"size={room},mode=700".encode())  # MS_NOSUID, MS_NODEV


def end_with_parent() -> None:
    """Have the kernel end this process when the thread ends that started it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, 9, 0, 0, 0)


def hide() -> None:
    """Keep other processes out of this one's memory, and take its capabilities and the means to regain any."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.capset(struct.pack("=Ii", CAPABILITIES, 0), bytes(24))


def lock_files(readable: Iterable[str], writable: str | None = None) -> bool:
    """Withhold by Landlock every file but for reading ``readable`` and Python's own and for any use of the folder
    ``writable``, and TCP, other processes' memory, and signals to them; False where the kernel has no Landlock. Follows
    `hide`."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    version = libc.syscall(RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = sum(bits for since, bits in BY_VERSION if version >= since)
    content = struct.pack("<QQQ", rights, 0b11, 0b11)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = libc.syscall(RULESET, content, ctypes.c_size_t(len(content)), 0)
    wanted = dict.fromkeys((*readable, *sys.path, os.path.join(sys.base_prefix, "lib"), *SYSTEM), READ)
    for path, allowed in {**wanted, **({} if writable is None else {writable: (READ | WRITE) & rights})}.items():
        if not os.path.exists(path):
            continue
        place = os.open(path, os.O_RDONLY)
        given = allowed if os.path.isdir(path) else allowed & 0b100
        refused = libc.syscall(RULE, ruleset, BENEATH, struct.pack("<Qi", given, place), 0)
        os.close(place)
        if refused:
            return False
    done = bool(libc.syscall(RESTRICT, ruleset, 0) == 0)
    os.close(ruleset)
    return done


def filter_program(machine: str, computing: bool = False) -> bytes:
    """The filter in BPF: calls of another architecture end the process, those of `weft.confinement.guards` are allowed,
    and every other fails with EPERM; ``computing`` adds threads and writing."""
    which = list(ARCHITECTURES).index(machine)

    def instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("<HBBI", code, yes, no, value)

    steps = [instruction(LOAD, 4), instruction(EQUAL, ARCHITECTURES[machine], 1, 0), instruction(RETURN, KILL),
             instruction(LOAD, 0)]
    plain, checks = ({**ALLOWED, **COMPUTING}, {**CHECKED, **OF_THREADS}) if computing else (ALLOWED, CHECKED)
    for numbers in plain.values():
        if (number := numbers[which]) is not None:
            steps += [instruction(EQUAL, number, 0, 1), instruction(RETURN, ALLOW)]
    for checked in checks.values():
        place, rule, values = checked[2:]
        if (number := checked[:2][which]) is None:
            continue
        code, (yes, no) = EQUAL if rule == "one of" else ANY_BIT, (1, 0) if rule == "none of" else (0, 1)
        tests = [each for value in values for each in (instruction(code, value, yes, no), instruction(RETURN, ALLOW))]
        steps += [instruction(EQUAL, number, 0, len(tests) + 2), instruction(LOAD, 16 + 8 * place), *tests,
                  instruction(RETURN, ERRNO | EPERM)]
    if computing:
        steps += [instruction(EQUAL, CLONE3, 0, 1), instruction(RETURN, ERRNO | ENOSYS)]
    return b"".join([*steps, instruction(RETURN, ERRNO | EPERM)])


def filter_calls(computing: bool = False) -> bool:
    """Have the kernel refuse system calls by `filter_program`; False where it cannot, or the processor is not known.
    Follows `hide`."""
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in ARCHITECTURES:
        return False
    program = filter_program(machine, computing)
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    return bool(ctypes.CDLL(None).prctl(SET_SECCOMP, FILTER, header, 0, 0) == 0)


def confine(readable: Sequence[str] = (), writable: str | None = None) -> list[str]:
    """Have the kernel confine this process for good; the means that are in force. A process with a folder ``writable``
    may also start threads; it must be refused its work where ``landlock`` is not among the means."""
    hide()
    by = ["landlock"] if lock_files(readable, writable) else []
    return [*by, "seccomp"] if filter_calls(computing=writable is not None) else by


def refuse_in_python() -> None:
    """Have Python itself refuse processes, threads, sockets, foreign code, and changes of files."""
    def heed(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
        if event.startswith(REFUSED) or (writes and not isinstance(arguments[0], int)):
            raise PermissionError(f"{event} is refused")

    sys.addaudithook(heed)
