"""The compiled library of this process: its functions, its instruction set, its threads, or why there is none."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.core.compiling import constant_to_compiler
from weft.ops.native import build

VARIABLE = "WEFT_CPU_CAPABILITY"
"""Names the instruction set to use in place of the best one, as ATEN_CPU_CAPABILITY does for PyTorch."""

TILES, CODE_OF_TILES = "amx", "avx512_bf16"
"""The set in which products in bfloat16 are taken by the processor's tiles, and that whose code it runs otherwise."""


class Missing(NamedTuple):
    """Why there is no native code: in some 40 letters, and with what the compiler said and what to do."""

    short: str
    detail: str


class NativeLibrary(NamedTuple):
    """The library.

    Attributes:
        handle: through which its functions are called.
        sets: the instruction sets that it has code for and the processor supports, the best first; with tiles (AMX),
            `TILES` is one.
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
    if have[0] == CODE_OF_TILES and handle.weft_has(TILES.encode()):
        have = (TILES, *have)
    return NativeLibrary(handle, path, have, _parallel())


def _parallel() -> int | None:
    """The address of ``GOMP_parallel`` in the OpenMP runtime that PyTorch has loaded, so that both share their
    threads."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except AttributeError:
        return None


def instructions() -> str | Missing:
    """The instruction set to use: the best one, or that of `VARIABLE`. From then on products use tiles or do not."""
    library = loaded()
    if isinstance(library, Missing):
        return library
    wanted, known = os.environ.get(VARIABLE), (TILES, *build.SETS)
    found = library.sets[0] if wanted is None else wanted
    if found not in known:
        return Missing(f"{VARIABLE} is unknown", f"{VARIABLE} is {found!r}. Give one of {', '.join(known)}, or "
                       "leave it out.")
    if found not in library.sets:
        return Missing(f"the processor has no {found}", f"{VARIABLE} is {found!r}, and this processor supports "
                       f"{', '.join(library.sets)}. Give one of them, or leave it out.")
    library.handle.weft_use_tiles(found == TILES)
    return found


def tiles_expected() -> bool:
    """Whether products in bfloat16 will use tiles where the library can be built: PyTorch's word for it, which needs no
    library."""
    return os.environ.get(VARIABLE, TILES) == TILES and torch.cpu._is_amx_tile_supported()


def code_of(found: str) -> str:
    """The end of the names of functions for an instruction set."""
    return CODE_OF_TILES if found == TILES else found


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


class Incomplete(MemoryError):
    """No thread had memory for its part of the work."""


ADDRESS, COUNT = ctypes.c_void_p, ctypes.c_long
"""Kinds of fields."""


def structure(*fields: tuple[Any, str]) -> Any:
    """A structure of C: kinds, each with the names of the fields that are of it, in the order of the header."""
    return type("structure", (ctypes.Structure,), {
        "_fields_": [(name, kind) for kind, names in fields for name in names.split()]})


def run(name: str, call: ctypes.Structure, pieces: int = 0, unfinished: str = "", /,
        **tensors: Tensor | None) -> None:
    """Run the function ``name`` of the library, in the instruction set of this process, on PyTorch's threads.

    Args:
        name: without the instruction set: ``weft_attention_forward``.
        call: its one argument, which every thread is given.
        pieces: of work, which threads count in ``call.next`` as they take them.
        unfinished: the message of the error where fewer were taken.
        tensors: by the fields that hold their addresses; those that do not lie row by row are copied.

    Raises:
        Incomplete: no thread had memory for its part.
    """
    dense = {field: None if x is None else x.contiguous() for field, x in tensors.items()}  # until C has read them
    for field, x in dense.items():
        setattr(call, field, None if x is None else x.data_ptr())
    found, library = instructions(), loaded()
    assert isinstance(found, str) and isinstance(library,
                                                 NativeLibrary), "the form serves only where there is a library"
    work = ctypes.cast(library.handle[f"{name}_{code_of(found)}"], ctypes.c_void_p)
    library.handle.weft_run(work, ctypes.byref(call), ctypes.c_void_p(library.parallel),
                            ctypes.c_uint(torch.get_num_threads()))
    if call.next < pieces:
        raise Incomplete(unfinished)
