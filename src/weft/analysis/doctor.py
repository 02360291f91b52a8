"""`doctor`: what this machine and this installation can do."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from weft.analysis.kernels import KnownOperation, Thresholds, known_operations, known_thresholds
from weft.analysis.matmul import Route, copy_bandwidth, routes
from weft.analysis.result import Result
from weft.core.version import VERSION

PACKAGE = "weft"
MISSING = "missing"
CORE = ("torch", "numpy", "pydantic", "jaxtyping", "safetensors", "tokenizers", "typer", "rich", "pyyaml")
"""What Weft needs, for a source tree that is not installed."""
COMPILERS = ("c++", "g++", "clang++", "cl")
UNLOCKS = {"dev": "the tests, the linter and the type checker", "docs": "building the documentation"}
"""What the extras of ``pyproject.toml`` are for."""
FASTER = 1.2
"""Differences below are noise."""
ROUNDED = 1e-4
"""Between float32's error in a product of 1024 terms, about 1e-6, and bfloat16's, about 1e-3."""


@dataclass(frozen=True)
class Extra(Result):
    """An optional set of packages.

    Attributes:
        missing: the packages that are not installed; none when it is complete.
    """

    name: str
    unlocks: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Device(Result):
    """Something that models can run on. ``memory``: bytes, 0 where PyTorch does not tell."""

    name: str
    description: str
    memory: int


@dataclass(frozen=True)
class Diagnosis(Result):
    """What was found.

    Attributes:
        versions: of Python, PyTorch, Weft and what it depends on; "missing" for what is not installed.
        threads: that PyTorch computes with.
        cores: that this process may use.
        capability: the vector instructions that PyTorch uses.
        backends: libraries that PyTorch was built with, and whether they can be used.
        routes: matrix products, measured; empty when measuring was not asked for.
        copy: bytes a second, read and written, of a copy in memory; 0 when it was not measured.
        compiler: the C++ compiler that ``torch.compile`` needs on a CPU; None: there is none.
        python_headers: whether Python's C headers, which it needs too, are installed.
        operations: what is computed in several ways, and how here.
        thresholds: where the borders between the ways come from.
        disk_free: bytes free where the process stands.
        disk_free_temporary: bytes free where temporary files go.
        warnings: what will hurt, and what to do.
    """

    versions: dict[str, str]
    platform: str
    extras: tuple[Extra, ...]
    devices: tuple[Device, ...]
    threads: int
    cores: int
    capability: str
    backends: dict[str, bool]
    routes: tuple[Route, ...]
    copy: float
    compiler: str | None
    python_headers: bool
    operations: tuple[KnownOperation, ...]
    thresholds: Thresholds
    disk_free: int
    disk_free_temporary: int
    warnings: tuple[str, ...]


def doctor(*, measure: bool = True) -> Diagnosis:
    """Look at the installation and the machine; with ``measure`` also time products and copies, a few seconds."""
    required, optional = describe_requirements(_declared())
    headers = _has_headers()
    compiler = next((path for path in map(shutil.which, COMPILERS) if path), None)
    cores = _cores()
    measured = routes() if measure else ()
    return Diagnosis(
        versions={"python": platform.python_version(), PACKAGE: VERSION,
                  **{name: _version(name) for name in required}},
        platform=platform.platform(), extras=optional, devices=_devices(), threads=torch.get_num_threads(),
        cores=cores, capability=torch.backends.cpu.get_cpu_capability(), backends=_backends(), routes=measured,
        copy=copy_bandwidth() if measure else 0.0, compiler=compiler, python_headers=headers,
        operations=known_operations(), thresholds=known_thresholds(),
        disk_free=shutil.disk_usage(Path.cwd()).free,
        disk_free_temporary=shutil.disk_usage(tempfile.gettempdir()).free,
        warnings=tuple(warnings_for(required, compiler, headers, cores, measured)))


def _declared() -> list[str]:
    """The requirements of the installed package."""
    try:
        return importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return list(CORE)


def describe_requirements(declared: Sequence[str]) -> tuple[list[str], tuple[Extra, ...]]:
    """The packages that are always needed, and the extras.

    Args:
        declared: requirements as package metadata writes them, ``name>=1; extra == 'docs'``.
    """
    required: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in declared:
        name = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", line)
        (extras.setdefault(extra.group(1), []) if extra else required).append(name)
    return sorted(required), tuple(
        Extra(name, UNLOCKS.get(name, f"what needs {', '.join(sorted(packages))}"),
              tuple(package for package in sorted(packages) if _version(package) == MISSING))
        for name, packages in sorted(extras.items()))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return MISSING


def _devices() -> tuple[Device, ...]:
    found = [Device("cpu", platform.processor() or platform.machine(), _memory())]
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        found.append(Device(f"cuda:{index}", card.name, card.total_memory))
    if torch.backends.mps.is_available():
        found.append(Device("mps", "Apple GPU", 0))
    return tuple(found)


def _memory() -> int:
    """Bytes of main memory, 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _backends() -> dict[str, bool]:
    return {"mkl": torch.backends.mkl.is_available(), "onednn": torch.backends.mkldnn.is_available(),
            "openmp": torch.backends.openmp.is_available(), "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available()}


def _has_headers() -> bool:
    return (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file()


def warnings_for(required: Sequence[str], compiler: str | None, headers: bool, cores: int,
                 measured: Sequence[Route]) -> Iterator[str]:
    """What will hurt, and what to do; the arguments are what `Diagnosis` holds."""
    missing = [name for name in required if _version(name) == MISSING]
    if missing:
        yield f"Not installed: {', '.join(missing)}. Install Weft again."
    lacking = [name for name, there in (("a C++ compiler", compiler), ("Python's headers", headers)) if not there]
    if lacking:
        yield (f"torch.compile on this CPU lacks {' and '.join(lacking)}: install what is lacking, or train and decode "
               "without it.")
    if torch.get_num_threads() > cores:
        yield f"{torch.get_num_threads()} threads share {cores} cores: use --threads {cores}."
    yield from _route_warnings(measured)


def _route_warnings(measured: Sequence[Route]) -> Iterator[str]:
    """A faster float32 route, with what it costs in exactness, and bfloat16 where it is none."""
    single = [route for route in measured if route.name.startswith("float32")]
    if len(single) == 2 and single[1].rate > FASTER * single[0].rate:
        kept = "keeps float32's accuracy" if single[1].error < ROUNDED else "rounds to bfloat16"
        yield (f"The second float32 route is {single[1].rate / single[0].rate:.1f} times as fast as the default here, "
               f"and {kept} (error {single[1].error:.1e} against {single[0].error:.1e}).")
    half = next((route for route in measured if route.name == "bfloat16"), None)
    if half is not None and single and single[0].rate > FASTER * half.rate:
        yield (f"bfloat16 products reach {half.rate / single[0].rate:.2f} of float32's speed here: compute in float32, "
               "unless memory is what is short.")
