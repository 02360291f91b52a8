"""Manifests: lists of the files of a folder with size and SHA-256, by which damage is detected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.core.errors import CheckpointError
from weft.disk.documents import MOST_INDEX_BYTES, read_json

MANIFEST_FILE = "MANIFEST.json"
COPY_AGAIN = "Copy the checkpoint again, whole, or use an earlier one."


@dataclass(frozen=True)
class FileEntry:
    """The entry of a file in a manifest: its size and SHA-256."""

    bytes: int
    sha256: str


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files in ``folder`` and the folders in it, by their relative paths."""
    files = {path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
             for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / MANIFEST_FILE}
    (folder / MANIFEST_FILE).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, FileEntry]:
    """The entries that `write_manifest` wrote, by relative path.

    Raises:
        OSError: the manifest is missing or cannot be read.
        ValueError: it is damaged, or is not a manifest of files.
    """
    content: Any = read_json(folder / MANIFEST_FILE, most=MOST_INDEX_BYTES)
    try:
        return {str(name): FileEntry(int(entry["bytes"]), str(entry["sha256"]))
                for name, entry in content["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(repr(error)) from None


def has_manifest(folder: Path) -> bool:
    """Whether a folder has a manifest, even if its files have changed since. The manifest of prepared data, which
    `weft.data.prepared_manifest` writes, has another form."""
    try:
        content: Any = read_json(folder / MANIFEST_FILE, most=MOST_INDEX_BYTES)
        return content.get("purpose") == "prepared data" or bool(read_manifest(folder))
    except (OSError, ValueError, AttributeError):
        return False


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_manifest(folder: Path, *, hashes: bool = True) -> None:
    """Compare every file with the manifest; ``hashes=False`` compares sizes only. Raises `CheckpointError`: files are
    missing, truncated or changed; all are listed."""
    what = differences(folder, _listed(folder), sha256_of if hashes else None)
    if what:
        raise CheckpointError(what, where=str(folder), remedy=COPY_AGAIN)


def differences(folder: Path, listed: Mapping[str, FileEntry], hashed: Callable[[Path], str] | None) -> str:
    """A heading, and a line for each listed file that is missing, truncated or changed; empty when none is.

    Args:
        folder: that the listed paths start from.
        listed: size and hash of each file, by its path.
        hashed: the hash of a file that is compared; None: sizes alone are.
    """
    problems = [what for name, entry in listed.items() if (what := _problem(folder / name, name, entry, hashed))]
    if not problems:
        return ""
    heading = "1 file is not as it was written" if len(problems) == 1 else (
        f"{len(problems)} files are not as they were written")
    return "\n  - ".join([f"{heading}:", *problems]) + "\n"


def _listed(folder: Path) -> dict[str, FileEntry]:
    path = folder / MANIFEST_FILE
    if not path.exists():
        raise CheckpointError(f"the checkpoint is incomplete: {MANIFEST_FILE} is missing.", where=str(folder),
                              remedy=COPY_AGAIN)
    try:
        return read_manifest(folder)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the manifest is damaged ({error!r}).", where=str(path), remedy=COPY_AGAIN) from None


def _problem(path: Path, name: str, entry: FileEntry, hashed: Callable[[Path], str] | None) -> str:
    if not path.is_file():
        return f"{name} is missing."
    size = path.stat().st_size
    if size < entry.bytes:
        return f"{name} is truncated: {size:,} bytes instead of {entry.bytes:,}."
    if size > entry.bytes:
        return f"{name} has grown: {size:,} bytes instead of {entry.bytes:,}."
    if hashed is not None and hashed(path) != entry.sha256:
        return f"{name} has changed: its SHA-256 differs."
    return ""
