"""Loading a model from an opened folder: tensors are mapped from its files, and copied only where they change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from weft.checkpoints.load import Loaded
from weft.core.model import Model
from weft.interop.huggingface.folder import Opened, open_folder, refuse
from weft.interop.huggingface.letters import letters_of
from weft.interop.huggingface.text import folder_tokenizer
from weft.interop.huggingface.with_code import has_code, load_with_code
from weft.interop.shapes import place, settle


def load_folder(folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None,
                strict: bool = False) -> Loaded:
    """The model and tokenizer of a folder that `transformers` wrote, or `weft.interop.huggingface.with_code` for it.

    Args:
        device: where the model goes.
        dtype: of the weights; None: as they are stored.
        strict: refuse unknown keys too (see `open_folder`), and tensors that hold NaN, for which every file is read
            once more.

    Raises:
        CheckpointError: listing everything that is wrong.
    """
    if has_code(folder):
        return load_with_code(folder, device=device, dtype=dtype, strict=strict)
    opened = open_folder(folder, strict=strict)
    model = load_model(opened, device=device, dtype=dtype, strict=strict)
    tokenizer = folder_tokenizer(folder, opened.config.vocab_size)
    facts = {"family": opened.family.name, "kept": dict(opened.kept), **letters_of(folder, tokenizer),
             **opened.generation}
    return Loaded(model, tokenizer, opened.config, None, facts, folder)


def load_model(opened: Opened, *, device: torch.device | str = "cpu",
               dtype: torch.dtype | None = None, strict: bool = False) -> Model:
    """The model, in evaluation mode. Tensors are read one rule at a time, so that there are never two copies of more
    than one rule's tensors.

    Args:
        opened: its folder.
        device: where the model goes.
        dtype: of the weights; None: as they are stored.
        strict: look for NaN, for which every tensor is read once more.

    Raises:
        CheckpointError: listing every tensor that is missing, unexpected or of another shape, and with ``strict``
            every one that holds NaN.
    """
    problems = [*opened.problems, *(_spoilt(opened) if strict else ()), *_untied(opened)]
    if problems:
        raise refuse(opened, problems)
    target = stored_dtype(opened) if dtype is None else dtype
    place(opened.model, dict(_produced(opened, target, torch.device(device))))
    settle(opened.model, torch.device(device))
    return opened.model.eval()


def stored_dtype(opened: Opened) -> torch.dtype:
    """The dtype of the weights; where files mix several, the one that config.json names, else the widest."""
    kinds = {entry.dtype for name in opened.places.values()
             if isinstance((entry := opened.stored.entries[name]).dtype, torch.dtype)}
    found = [kind for kind in kinds if isinstance(kind, torch.dtype)]
    named = next((kind for kind in found if str(kind) == f"torch.{opened.kept.get('dtype')}"), None)
    widest = found[0]
    for kind in found[1:]:
        widest = torch.promote_types(widest, kind)
    return widest if named is None else named


def _produced(opened: Opened, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    for rule in opened.account.rules:
        found = rule.read([opened.stored.get(opened.places[name]) for name in rule.theirs])
        for name, tensor in zip(rule.ours, found, strict=True):
            yield name, tensor.to(device, dtype).contiguous()


def _spoilt(opened: Opened) -> Iterator[str]:
    """A line for each tensor that holds NaN."""
    for name in opened.places.values():
        entry = opened.stored.entries[name]
        if isinstance(entry.dtype, torch.dtype) and 0 not in entry.shape:
            tensor = opened.stored.get(name)
            # `aminmax` reads the tensor once without a temporary, and propagates NaN.
            if bool(torch.aminmax(tensor).min.isnan()):
                yield f"{name}: holds NaN."


def _untied(opened: Opened) -> Iterator[str]:
    """A line for each tensor that should repeat another and does not."""
    for copy, source in opened.account.tied.items():
        if copy in opened.places and source in opened.places:
            first, second = (opened.stored.get(opened.places[name]) for name in (copy, source))
            if first.shape == second.shape and not torch.equal(first, second):
                yield f"{copy}: differs from {source}, though the configuration ties them."
