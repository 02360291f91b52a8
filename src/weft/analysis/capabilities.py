"""`doctor`: the capabilities of this machine and this installation."""

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

from weft.analysis.gpu_speed import CardSpeed, card_speed
from weft.analysis.kept_routes import KeptRoute, RouteCache
from weft.analysis.kernels import KnownOperation, known_operations
from weft.analysis.matmul import Timing, as_kept, copy_bandwidth, renew, timed, usual_products
from weft.core.strict_json import Record
from weft.core.version import VERSION
from weft.ops.forms import REFERENCE
from weft.ops.native.library import describe
from weft.ops.processor import main_memory
from weft.ops.triton.library import describe as describe_triton

PACKAGE = "weft"
MISSING = "missing"
CORE = ("torch", "numpy", "pydantic", "jaxtyping", "safetensors", "tokenizers", "typer", "rich", "pyyaml")
"""The packages that Weft requires, for a source tree without package metadata."""
COMPILERS = ("c++", "g++", "clang++", "cl")
UNLOCKS = {"dev": "the tests, the linter and the type checker", "docs": "building the documentation"}
"""The purpose of each extra of ``pyproject.toml``."""
SLOWER = 1.2
"""The factor by which bfloat16 must be slower than float32 for a warning; smaller differences may be chance."""


@dataclass(frozen=True)
class Extra(Record):
    """An optional set of packages.

    Attributes:
        unlocks: what the packages are for.
        missing: the packages that are not installed.
    """

    name: str
    unlocks: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Device(Record):
    """A device that models can run on. ``memory``: bytes, 0 if PyTorch does not report it."""

    name: str
    description: str
    memory: int


@dataclass(frozen=True)
class Diagnosis(Record):
    """The result of `doctor`.

    Attributes:
        versions: the versions of Python, Weft and the packages that it requires; "missing" for one not installed.
        threads: the threads that PyTorch uses.
        cores: the cores that this process may use.
        capability: the vector instructions that PyTorch uses.
        backends: libraries of PyTorch, and whether each can be used.
        routes: timings of the matrix products of a small Transformer by every route, and the route that training takes
            of each; empty if not measured.
        kept: the routes that training has chosen on this machine, for this number of threads, and takes from then on.
        kept_in: the folder of their files.
        copy: bytes per second, read and written, of a copy in memory; 0 if not measured.
        cards: the speed of each GPU; empty if not measured.
        compiler: the C++ compiler that ``torch.compile`` needs on a CPU; None if there is none.
        python_headers: whether Python's C headers, which ``torch.compile`` also needs, are installed.
        native: the instruction set of Weft's native code and its file, or why there is none.
        triton: Triton's version, or why there is none.
        operations: the operations that have several forms, and the form that is chosen here.
        disk_free: free bytes in the working directory's file system.
        disk_free_temporary: free bytes in the file system of temporary files.
        warnings: problems and their remedies, in words.
    """

    versions: dict[str, str]
    platform: str
    extras: tuple[Extra, ...]
    devices: tuple[Device, ...]
    threads: int
    cores: int
    capability: str
    backends: dict[str, bool]
    routes: tuple[Timing, ...]
    kept: tuple[KeptRoute, ...]
    kept_in: Path
    copy: float
    cards: tuple[CardSpeed, ...]
    compiler: str | None
    python_headers: bool
    native: str
    triton: str
    operations: tuple[KnownOperation, ...]
    disk_free: int
    disk_free_temporary: int
    warnings: tuple[str, ...]


def doctor(*, measure: bool = True, renew_routes: bool = False) -> Diagnosis:
    """Inspect the installation and the machine.

    Args:
        measure: also time products and copies, for some seconds.
        renew_routes: first measure every product again whose route is kept, and keep what is found now.

    Raises:
        ConfigError: the routes cannot be renewed.
    """
    if renew_routes:
        renew()
    cache = RouteCache()
    required, optional = describe_requirements(_declared())
    headers = (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file()
    compiler = next((path for path in map(shutil.which, COMPILERS) if path), None)
    cores = (len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)
    measured = as_kept(timed(product for dtype in (torch.float32, torch.bfloat16)
                             for product in usual_products(dtype))) if measure else ()
    backends = {"mkl": torch.backends.mkl.is_available(), "onednn": torch.backends.mkldnn.is_available(),
                "openmp": torch.backends.openmp.is_available(), "cuda": torch.cuda.is_available(),
                "mps": torch.backends.mps.is_available()}
    return Diagnosis(
        versions={"python": platform.python_version(), PACKAGE: VERSION,
                  **{name: _version(name) for name in required}},
        platform=platform.platform(), extras=optional, devices=_devices(), threads=torch.get_num_threads(),
        cores=cores, capability=torch.backends.cpu.get_cpu_capability(), backends=backends, routes=measured,
        kept=tuple(cache), kept_in=cache.folder,
        copy=copy_bandwidth() if measure else 0.0, cards=tuple(_cards()) if measure else (), compiler=compiler,
        python_headers=headers, native=describe(),
        triton=describe_triton(),
        operations=known_operations(),
        disk_free=shutil.disk_usage(Path.cwd()).free,
        disk_free_temporary=shutil.disk_usage(tempfile.gettempdir()).free,
        warnings=(*warnings_for(required, compiler, headers, cores, measured), *cache.problems()))


def _declared() -> list[str]:
    """The requirements of the installed package."""
    try:
        return importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return list(CORE)


def describe_requirements(declared: Sequence[str]) -> tuple[list[str], tuple[Extra, ...]]:
    """The required packages and the extras.

    Args:
        declared: requirements in the format of package metadata, such as ``name>=1; extra == 'docs'``.
    """
    required: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in declared:
        name = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", line)
        (extras.setdefault(extra.group(1), []) if extra else required).append(name)
    return sorted(required), tuple(
        Extra(name, UNLOCKS.get(name, f"features that need {', '.join(sorted(packages))}"),
              tuple(package for package in sorted(packages) if _version(package) == MISSING))
        for name, packages in sorted(extras.items()))


def _version(package: str) -> str:
    try:
        return str(torch.__version__) if package == "torch" else importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return MISSING


def _devices() -> tuple[Device, ...]:
    devices = [Device("cpu", platform.processor() or platform.machine(), main_memory())]
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        devices.append(Device(f"cuda:{index}", card.name, card.total_memory))
    if torch.backends.mps.is_available():
        devices.append(Device("mps", "Apple GPU", 0))
    return tuple(devices)


def _cards() -> Iterator[CardSpeed]:
    for index in range(torch.cuda.device_count()):
        yield card_speed(torch.device("cuda", index))


def warnings_for(required: Sequence[str], compiler: str | None, headers: bool, cores: int,
                 measured: Sequence[Timing]) -> Iterator[str]:
    """Problems and their remedies, in words; the arguments are as in `Diagnosis`."""
    missing = [name for name in required if _version(name) == MISSING]
    if missing:
        yield f"Required packages are not installed: {', '.join(missing)}. Install Weft again."
    lacking = [name for name, there in (("a C++ compiler", compiler), ("Python's headers", headers)) if not there]
    if lacking:
        yield (f"torch.compile cannot run on this CPU without {' and '.join(lacking)}. Install it, or train and decode "
               "without torch.compile.")
    if torch.get_num_threads() > cores:
        yield f"PyTorch uses {torch.get_num_threads()} threads on {cores} cores. Give --threads {cores}."
    yield from _route_warnings(measured)


def _route_warnings(measured: Sequence[Timing]) -> Iterator[str]:
    """Warnings about products that another route computes faster, and about slow bfloat16."""
    gains = [each.gain for each in measured if each.route != REFERENCE]
    if gains:
        yield (f"{len(gains)} of {len(measured)} products are up to {max(gains):.1f} times as fast, and as exact, by "
               "another route than PyTorch's own choice. Training uses it if training.compute.matmul is auto.")
    square: dict[str, float] = {}
    for each in measured:  # the first of each dtype is the square one
        square.setdefault(each.product.split(" ")[2], each.rates[each.route])
    single, half = square.get("float32"), square.get("bfloat16")
    if single is not None and half is not None and single > SLOWER * half:
        yield (f"bfloat16 products run at {half / single:.2f} of float32's speed here. Compute in float32, unless "
               "memory is short.")
