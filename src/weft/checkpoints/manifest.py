"""The manifest: size and SHA-256 of every file of a checkpoint, so that damage is noticed and named."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from weft.checkpoints.layout import MANIFEST_FILE
from weft.core.errors import CheckpointError

COPY_AGAIN = "Copy the checkpoint again, whole, or use an earlier one."


def write_manifest(folder: Path) -> None:
    """List every file of ``folder``."""
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(folder.iterdir())}
    (folder / MANIFEST_FILE).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")


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


def _listed(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / MANIFEST_FILE
    if not path.exists():
        raise CheckpointError(f"the checkpoint is not whole: {MANIFEST_FILE} is missing.", where=str(folder),
                              remedy=COPY_AGAIN)
    try:
        files: dict[str, dict[str, Any]] = json.loads(path.read_bytes())["files"]
        return {str(name): {"bytes": int(entry["bytes"]), "sha256": str(entry["sha256"])}
                for name, entry in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the manifest is damaged ({error!r}).", where=str(path), remedy=COPY_AGAIN) from None


def _problem(path: Path, entry: dict[str, Any], hashes: bool) -> str:
    if not path.is_file():
        return f"{path.name} is missing."
    size = path.stat().st_size
    if size < entry["bytes"]:
        return f"{path.name} is truncated: {size} of {entry['bytes']} bytes."
    if size > entry["bytes"]:
        return f"{path.name} has grown: {size} bytes instead of {entry['bytes']}."
    if hashes and _sha256(path) != entry["sha256"]:
        return f"{path.name} has changed: its SHA-256 differs."
    return ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
