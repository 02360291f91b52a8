"""Compiling the C sources of this folder, once for each version of them, into a cache folder.

The folder is ``$WEFT_CACHE_DIR``, else ``$XDG_CACHE_HOME/weft``, else ``~/.cache/weft``; in it each build has a folder
whose name is a hash of what it was made from, with the library and ``build.json``, which holds the library's hash. A
build is made beside its place and renamed when it is complete, so of two processes that build at once one has its
folder discarded. What is there already is never changed: a library whose hash differs is not loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from weft.core.process_settings import cache_root, is_own

SOURCES = Path(__file__).parent
COMMON = ("library.c", "sequence.c")
"""Compiled once; every other source is compiled once for each instruction set."""
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fno-math-errno")
AVX2 = ("-mavx2", "-mfma", "-mbmi", "-mbmi2")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
NARROW = (*AVX512, "-mavx512bf16", "-mavx512vnni")
SETS: Mapping[str, tuple[str, ...]] = {"avx512_bf16": NARROW, "avx512": AVX512, "avx2": AVX2, "baseline": ()}
"""Instruction sets, the best first, and what tells the compiler to use them."""
LIBRARY, RECORD = "libweft.so", "build.json"
FORMAT = 2
"""Of the record: 2 says for which sets there is code."""
SECONDS = 300
"""Until a compiler that does not end is given up."""


class BuildError(Exception):
    """There is no library.

    Args:
        short: why, in some 40 letters.
        detail: what the compiler or the system said, and what to do.
    """

    def __init__(self, short: str, detail: str) -> None:
        super().__init__(short)
        self.short, self.detail = short, detail


def sets() -> tuple[str, ...]:
    """The instruction sets that code is compiled for on this kind of processor, the best first."""
    return tuple(SETS) if platform.machine().lower() in ("x86_64", "amd64") else ("baseline",)


def cache_folder() -> Path:
    """The folder of the builds."""
    return cache_root() / "native"


def library() -> Path:
    """The compiled library, from the cache or built now. Raises `BuildError`: there is no compiler, it fails, or the
    cache cannot be used."""
    try:
        folder = cache_folder() / _key()
        if not folder.exists():
            _build(folder)
        return _proven(folder)
    except (OSError, RuntimeError) as error:  # Path.home raises a RuntimeError where there is none
        raise BuildError("its cache folder cannot be used", f"{error}. Name a folder that can be written to in the "
                         "variable WEFT_CACHE_DIR.") from None


def compiled(library: Path) -> tuple[str, ...]:
    """The instruction sets that a library has code for, the best first."""
    return tuple(json.loads((library.parent / RECORD).read_text(encoding="utf-8"))["sets"])


def compiler() -> str:
    """The path of the C compiler: the one that the variable CC names, or the first of `COMPILERS`. Raises `BuildError`:
    there is none."""
    names = [os.environ["CC"]] if os.environ.get("CC") else list(COMPILERS)
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        raise BuildError("no C compiler is here", f"none of {', '.join(names)} is on the path. Install one, or name "
                         "one in the variable CC; everything works without, more slowly.")
    return found


def _key() -> str:
    """A hash of all that the library is made from, without the compiler, which the record names."""
    text = hashlib.sha256(repr((FORMAT, sets(), FLAGS, SETS, os.environ.get("CC"))).encode())
    for path in sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")]):
        text.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return text.hexdigest()[:32]


def _build(folder: Path) -> None:
    """Compile into a folder beside ``folder``, and rename it."""
    program = compiler()
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".draft-") as outside:
        draft = Path(outside) / "build"
        draft.mkdir(mode=0o700)
        able = [name for name in sets() if _knows(program, SETS[name])]
        _compile(program, draft, able)
        digest = hashlib.sha256((draft / LIBRARY).read_bytes()).hexdigest()
        record = {"compiler": program, "sha256": digest, "sets": able}
        (draft / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")
        try:
            draft.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was first, with the same code
                raise


def _knows(program: str, flags: Iterable[str]) -> bool:
    """Whether the compiler knows these flags; old ones lack those of new processors. Without flags there is no need to
    ask."""
    flags = list(flags)
    return not flags or _ended([program, *flags, "-E", "-x", "c", os.devnull, "-o", os.devnull]).returncode == 0


def _compile(program: str, folder: Path, able: Iterable[str]) -> None:
    """The library of all sources for the instruction sets ``able``, compiled on all processors."""
    objects, lines = [], []
    kernels = sorted({path.name for path in SOURCES.glob("*.c")}.difference(COMMON))
    for source, name, flags in [*((each, name, SETS[name]) for each in kernels for name in able),
                                *((each, "common", ()) for each in COMMON)]:
        objects.append(str(folder / f"{Path(source).stem}-{name}.o"))
        lines.append([program, *FLAGS, *flags, f"-DSET={name}", "-c", str(SOURCES / source), "-o", objects[-1]])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(_run, lines):
            pass
    _run([program, "-shared", "-o", str(folder / LIBRARY), *objects, "-lm"])
    for path in objects:
        Path(path).unlink()


def _ended(line: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=SECONDS, errors="replace")
    except subprocess.TimeoutExpired:
        raise BuildError("the C compiler does not end", f"{line[0]} took more than {SECONDS} s. Name another one in "
                         "the variable CC.") from None


def _run(line: list[str]) -> None:
    done = _ended(line)
    if done.returncode:
        said = next((each for each in done.stderr.splitlines() if "error" in each), done.stderr.strip())
        raise BuildError("the C compiler fails", f"{line[0]} ends with status {done.returncode}: {said.strip()}. Name "
                         "another one in the variable CC.")


def _proven(folder: Path) -> Path:
    """The library of a folder that holds what a build of this user left there."""
    path = folder / LIBRARY
    try:
        known = json.loads((folder / RECORD).read_text(encoding="utf-8"))["sha256"]
    except (ValueError, KeyError, TypeError):
        known = ""
    if not is_own(folder) or hashlib.sha256(path.read_bytes()).hexdigest() != known:
        raise BuildError("its build is not as it was made", f"{folder} was changed or is another user's, so it is not "
                         "loaded. Move it away, and it is built again.")
    return path


def is_build(folder: Path) -> bool:
    """Whether a folder holds a build of this user as it was made, and nothing else, so that it may be deleted. Raises
    `OSError`: it cannot be read."""
    if folder.is_symlink() or not folder.is_dir() or {path.name for path in folder.iterdir()} != {LIBRARY, RECORD}:
        return False
    try:
        _proven(folder)
    except BuildError:
        return False
    return True
