"""Weft's own folders of an adapter alone.

    weft_adapter.json    format, the model under it (its path and a fingerprint of its weights), the model's rewrites
    adapter.safetensors  what training has changed: matrices of low rank, lengths, further parameters
    MANIFEST.json        size and SHA-256 of both
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from weft.checkpoints.layout import ADAPTER_FILE, ADAPTER_TENSORS
from weft.checkpoints.load import Loaded
from weft.checkpoints.tensors import read_tensors, write_tensors
from weft.core.config import parse_part
from weft.core.errors import CheckpointError, ConfigError
from weft.core.model import Model
from weft.core.part_config import PartConfig
from weft.core.strict_json import dumps
from weft.core.version import VERSION
from weft.disk.documents import read_json
from weft.disk.manifest import COPY_AGAIN, check_manifest, write_manifest
from weft.interop.adapters.base import fill, fingerprint_of, open_base, put_on, trained_tensors

FORMAT = 1


def write_own(model: Model, base: str, draft: Path) -> None:
    """Write a model's adapters into an empty folder.

    Args:
        model: with adapters.
        base: where the model under them is.
        draft: the folder.

    Raises:
        UnsupportedError: the model has no adapters.
    """
    tensors = trained_tensors(model, "adapter")
    content = {"weft_adapter": FORMAT, "weft_version": VERSION, "base": base, "fingerprint": fingerprint_of(model),
               "rewrites": model.config.dump()["rewrites"]}
    (draft / ADAPTER_FILE).write_text(dumps(content, indent=1) + "\n", encoding="utf-8")
    write_tensors(draft / ADAPTER_TENSORS, tensors)
    write_manifest(draft)


def rewrites_of(folder: Path) -> tuple[dict[str, Any], list[PartConfig]]:
    """The content of an adapter's file, and the rewrites in it.

    Raises:
        CheckpointError: it is damaged, of a newer format, or needs parts that are not registered.
    """
    path = folder / ADAPTER_FILE
    try:
        content = read_json(path)
        version, rewrites = int(content["weft_adapter"]), list(content["rewrites"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the file is damaged ({error}).", where=str(path), remedy=COPY_AGAIN) from None
    if version > FORMAT:
        raise CheckpointError(f"format {version} is newer than this Weft reads ({FORMAT}).", where=str(path),
                              remedy="Update Weft.")
    try:
        return content, [parse_part(("rewrite",), each) for each in rewrites]
    except ConfigError as error:
        raise CheckpointError(f"its rewrites cannot be read: {' '.join(error.problems)}", where=str(path),
                              remedy="If they need a plugin, give that file with --plugin.") from None


def read_own(folder: Path, *, base: str | None = None, dtype: torch.dtype | None = None) -> Loaded:
    """The model under an adapter, with the adapter.

    Args:
        folder: the adapter's.
        base: the model under it; None: the one that the folder names.
        dtype: of all weights; None: as the model's are stored.

    Raises:
        CheckpointError: a file is damaged, the model is not there, or it is another one.
    """
    check_manifest(folder)
    content, rewrites = rewrites_of(folder)
    found = put_on(open_base(base or content.get("base"), folder), rewrites, folder, content.get("fingerprint"))
    found.model.to(dtype)
    fill(trained_tensors(found.model, "adapter"), read_tensors(folder / ADAPTER_TENSORS), str(folder / ADAPTER_TENSORS))
    return found
