"""Comparing a checkpoint with its manifest, so that damage is noticed and named."""

from __future__ import annotations

from pathlib import Path

from weft.core.errors import CheckpointError
from weft.disk.ownership import MANIFEST_FILE, FileEntry, read_manifest, sha256_of

COPY_AGAIN = "Copy the checkpoint again, whole, or use an earlier one."


def check_manifest(folder: Path, *, hashes: bool = True) -> None:
    """Compare every file with the manifest; ``hashes=False`` compares sizes only.

    Raises:
        CheckpointError: listing every file that is missing, truncated or changed.
    """
    files = _listed(folder)
    problems = [what for name, entry in files.items() if (what := _problem(folder / name, entry, hashes))]
    if problems:
        count = "1 file is" if len(problems) == 1 else f"{len(problems)} files are"
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise CheckpointError(f"{count} not as they were saved:{listed}\n", where=str(folder), remedy=COPY_AGAIN)


def _listed(folder: Path) -> dict[str, FileEntry]:
    path = folder / MANIFEST_FILE
    if not path.exists():
        raise CheckpointError(f"the checkpoint is not whole: {MANIFEST_FILE} is missing.", where=str(folder),
                              remedy=COPY_AGAIN)
    try:
        return read_manifest(folder)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the manifest is damaged ({error!r}).", where=str(path), remedy=COPY_AGAIN) from None


def _problem(path: Path, entry: FileEntry, hashes: bool) -> str:
    if not path.is_file():
        return f"{path.name} is missing."
    size = path.stat().st_size
    if size < entry.bytes:
        return f"{path.name} is truncated: {size} of {entry.bytes} bytes."
    if size > entry.bytes:
        return f"{path.name} has grown: {size} bytes instead of {entry.bytes}."
    if hashes and sha256_of(path) != entry.sha256:
        return f"{path.name} has changed: its SHA-256 differs."
    return ""
