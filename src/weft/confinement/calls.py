"""The system calls that a confined process may make, by name, with their numbers on x86-64 and ARM64; all others fail.

They are those that CPython 3.11 to 3.14 makes for programs that compute: memory, reading, the clock, waiting, its own
signal handlers. None creates, changes or locks a file, starts a process or thread, opens a socket, or takes a process's
number for anything but reading a limit of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

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
"""Calls that are allowed whatever their arguments: name, and number on x86-64 and on ARM64 (None: it has none)."""

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
"""Calls that are allowed if the low half of an argument has none of some bits, or one of some values: name, number on
x86-64 and on ARM64, which argument, the rule, and its values. Each of these arguments has 32 bits in the kernel."""
