"""Manifests: every file of a folder with its size and SHA-256, by which damage is noticed and named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from weft.core.errors import CheckpointError

MANIFEST_FILE = "MANIFEST.json"
COPY_AGAIN = "Copy the checkpoint again, whole, or use an earlier one."


@final
@dataclass(frozen=True)
class FileEntry:
    """What a manifest says of a file: its size and SHA-256."""

    bytes: int
    sha256: str


def write_manifest(folder: Path) -> None:
    """List every file of ``folder`` and of the folders in it, by its path from there on."""
    files = {path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
             for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / MANIFEST_FILE}
    (folder / MANIFEST_FILE).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, FileEntry]:
    """What `write_manifest` listed.

    Raises:
        OSError: it is missing or cannot be read.
        ValueError: it is damaged, or no manifest of files.
    """
    content: Any = json.loads((folder / MANIFEST_FILE).read_bytes())
    try:
        return {str(name): FileEntry(int(entry["bytes"]), str(entry["sha256"]))
                for name, entry in content["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(repr(error)) from None


def has_manifest(folder: Path) -> bool:
    """Whether Weft has listed a folder's files, whatever has become of them; prepared data have a form of their own."""
    try:
        content: Any = json.loads((folder / MANIFEST_FILE).read_bytes())
        return content.get("purpose") == "prepared data" or bool(read_manifest(folder))
    except (OSError, ValueError, AttributeError):
        return False


def sha256_of(path: Path) -> str:
    """Of a file's content, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_manifest(folder: Path, *, hashes: bool = True) -> None:
    """Compare every file with the manifest; ``hashes=False`` compares sizes only.

    Raises:
        CheckpointError: listing every file that is missing, truncated or changed.
    """
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
        raise CheckpointError(f"the checkpoint is not whole: {MANIFEST_FILE} is missing.", where=str(folder),
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
