"""The compiled library of this process: its functions, its instruction set, its threads, or why there is none."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple, final

import torch

from weft.core.compiling import constant_to_compiler
from weft.ops.native import build

VARIABLE = "WEFT_CPU_CAPABILITY"
"""Names the instruction set to use in place of the best one, as ATEN_CPU_CAPABILITY does for PyTorch."""


class Missing(NamedTuple):
    """Why there is no native code: in some 40 letters, and with what the compiler said and what to do."""

    short: str
    detail: str


class NativeLibrary(NamedTuple):
    """The library.

    Attributes:
        handle: through which its functions are called.
        sets: the instruction sets that it has code for and the processor supports, the best first.
        parallel: the address of OpenMP's function that runs one function on several threads; None: there is none.
    """

    handle: ctypes.CDLL
    path: Path
    sets: tuple[str, ...]
    parallel: int | None


@cache
def loaded() -> NativeLibrary | Missing:
    """The library, compiled at the first call if it was not before."""
    if sys.platform == "win32":
        return Missing("there is none for Windows", "Native code needs a system with POSIX threads and libraries.")
    try:
        path = build.library()
        handle = ctypes.CDLL(str(path))
    except build.BuildError as error:
        return Missing(error.short, error.detail)
    except OSError as error:
        return Missing("its library cannot be loaded", f"{error}. Move {path.parent} away, and it is built again.")
    have = tuple(name for name in build.compiled(path) if handle.weft_has(name.encode()))
    return NativeLibrary(handle, path, have, _parallel())


def _parallel() -> int | None:
    """The address of ``GOMP_parallel`` in the OpenMP runtime that PyTorch has loaded, so that both share their
    threads."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except AttributeError:
        return None


def instructions() -> str | Missing:
    """The instruction set to use: the best one, or that of `VARIABLE`."""
    library = loaded()
    if isinstance(library, Missing):
        return library
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return library.sets[0]
    if wanted not in build.SETS:
        return Missing(f"{VARIABLE} is unknown", f"{VARIABLE} is {wanted!r}. Give one of {', '.join(build.SETS)}, or "
                       "leave it out.")
    if wanted not in library.sets:
        return Missing(f"the processor has no {wanted}", f"{VARIABLE} is {wanted!r}, and this processor supports "
                       f"{', '.join(library.sets)}. Give one of them, or leave it out.")
    return wanted


@constant_to_compiler
def why_not() -> str | None:
    """Why native code cannot be used, in some 40 letters; None where it can."""
    found, library = instructions(), loaded()
    if isinstance(found, Missing):
        return found.short
    if isinstance(library, NativeLibrary) and library.parallel is None and torch.get_num_threads() > 1:
        return "PyTorch's OpenMP is of another kind"
    return None


@constant_to_compiler
def threads() -> int:
    """PyTorch's threads."""
    return torch.get_num_threads()


def describe() -> str:
    """The instruction set and the file of the library, or why there is none and what to do."""
    found, library = instructions(), loaded()
    if isinstance(found, Missing):
        return f"none, {found.short}: {found.detail}"
    assert isinstance(library, NativeLibrary), "there is an instruction set only with a library"
    threads = "" if library.parallel else ", on one thread (PyTorch's OpenMP has no GOMP_parallel)"
    return f"{found}{threads}, {library.path}"


@final
class Incomplete(MemoryError):
    """No thread had memory for its part of the work."""


def run(name: str, call: ctypes.Structure) -> None:
    """Run the function ``name`` of the library, in the instruction set of this process, on PyTorch's threads.

    Args:
        name: without the instruction set: ``weft_attention_forward``.
        call: its one argument, which every thread is given.
    """
    found, library = instructions(), loaded()
    assert isinstance(found, str) and isinstance(library,
                                                 NativeLibrary), "the form serves only where there is a library"
    work = ctypes.cast(library.handle[f"{name}_{found}"], ctypes.c_void_p)
    library.handle.weft_run(work, ctypes.byref(call), ctypes.c_void_p(library.parallel),
                            ctypes.c_uint(torch.get_num_threads()))
