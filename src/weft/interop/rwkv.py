"""Reading RWKV's original files: one ``.pth`` of tensors by name, which is read as weights only, so that nothing in it
is run. Sizes follow from shapes, and the version from names (`weft.families.rwkv`)."""

from __future__ import annotations

from pathlib import Path

import torch

from weft.checkpoints.load import Loaded
from weft.checkpoints.tensors import own_tensors
from weft.core.base_model import built_empty
from weft.core.errors import CheckpointError, ConfigError
from weft.families.common import BUFFERS
from weft.families.rwkv import VERSIONS, Version, common_facts, version_of
from weft.families.template import Facts, build_config
from weft.families.weights import Shape, account
from weft.interop.huggingface.folder import Opened, unusable
from weft.interop.huggingface.loading import load_model
from weft.interop.huggingface.stored import PickledFile, Stored

SUFFIX = ".pth"
ORIGINAL = "Give a file of RWKV as it was released: emb.weight, blocks.0.att.time_decay, ... ."


def is_original(path: Path) -> bool:
    """Whether a path names such a file."""
    return path.suffix == SUFFIX and not path.is_dir()


def load_original(path: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Loaded:
    """The model of a file; files hold no tokenizer.

    Args:
        device: where the model goes.
        dtype: of the weights; None: as they are stored.

    Raises:
        CheckpointError: there is no file, or it is not RWKV's, listing everything that is wrong.
    """
    opened = open_original(path)
    model = load_model(opened, device=device, dtype=dtype, strict=True)
    return Loaded(model, None, opened.config, None, {"family": opened.family.name}, path)


def open_original(path: Path) -> Opened:
    """Open a file, reading the names and shapes of its tensors. Raises `CheckpointError`: there is no file, or it is
    not RWKV's. Problems of single tensors are in ``problems``."""
    if not path.is_file():
        raise CheckpointError("there is no such file.", where=str(path), remedy="Check the path.")
    stored = Stored({path.name: PickledFile(path)})
    shapes = stored.shapes()
    version = version_of(shapes)
    if version is None:
        known = ", ".join(sorted(version.family.name for version in VERSIONS))
        raise CheckpointError(f"its tensors have the names of no version of RWKV that is known here ({known}; RWKV-5 "
                              "from 5.2 on).", where=str(path), remedy=ORIGINAL)
    facts = _facts(version, shapes, path)
    try:
        config = build_config(version.family.template, facts)
        model = built_empty(config)
    except ConfigError as error:
        raise CheckpointError(f"the shapes of its tensors give no model: {' '.join(error.problems)}", where=str(path),
                              remedy=ORIGINAL) from None
    found = account(version.weights(facts), own_tensors(model), junk=(*version.junk, *BUFFERS))
    places, problems = found.reconcile(shapes)
    problems += [problem for name in places.values() if (problem := unusable(name, stored.entries[name]))]
    return Opened(path, version.family, config, {}, {}, model, stored, found, places, tuple(problems))


def _facts(version: Version, shapes: dict[str, Shape], path: Path) -> Facts:
    try:
        return {"context": version.context, **common_facts(shapes), **version.facts(shapes)}
    except KeyError as missing:
        what = f"the tensor {missing} is missing, from whose shape sizes follow."
    except (ValueError, IndexError):
        what = "the tensors from whose shapes sizes follow have other numbers of dimensions."
    raise CheckpointError(what, where=str(path), remedy=ORIGINAL)
