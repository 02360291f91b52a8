"""Whether Triton can be used in this process, or why not; and its kernels, compiled at their first calls."""

from __future__ import annotations

import importlib
import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from weft.core.compiling import constant_to_compiler
from weft.ops.forms import Offer

VARIABLE = "TRITON_INTERPRET"
"""Triton's own: it is read when Triton is imported."""


@cache
def interpreted() -> bool:
    """Whether Triton runs its kernels by its interpreter, on a processor."""
    return os.environ.get(VARIABLE, "").lower() in ("1", "true", "yes", "on", "y")


def devices() -> frozenset[str]:
    """On which kinds of device a form in Triton runs."""
    return frozenset({"cuda", "cpu"} if interpreted() else {"cuda"})


def offer() -> Offer:
    """That of every form in Triton: interpreted, it is for tests."""
    return Offer("Triton's interpreter is slow" if interpreted() else None)


@constant_to_compiler
def why_not() -> str | None:
    """Why Triton cannot be used, in some 40 letters; None where it can."""
    return _why_not()  # the compiler would trace through a cache, and cannot trace a search for programs


@cache
def _why_not() -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed"
    if interpreted() or _compiler():
        return None
    return "triton finds no C compiler"


def _compiler() -> str | None:
    """The C compiler with which Triton builds what starts its kernels, as it looks for one."""
    return os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc") or shutil.which("cc")


def describe() -> str:
    """Triton's version and what runs its kernels, or why there is none and what to do."""
    why = why_not()
    try:
        number = version("triton")
    except PackageNotFoundError:
        return "none, triton is not installed: it comes with PyTorch for CUDA, or by pip install triton"
    if why is not None:
        return f"{number}, of no use: {why}. Install gcc or clang, or name one as CC"
    if interpreted():
        return f"{number}, interpreted on the processor ({VARIABLE})"
    return number if torch.cuda.is_available() else f"{number}, without a GPU to use it"


@cache
def kernels(name: str) -> Any:
    """The module of that name in the folder ``kernels``."""
    return importlib.import_module(f"weft.ops.triton.kernels.{name}")


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """A context in which kernels start on the device of ``x``."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
