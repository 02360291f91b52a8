"""A model from a folder that brings a modelling file of its own, read from its data: nothing in it is run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from weft.checkpoints.layout import CONFIG_FILE
from weft.checkpoints.load import Loaded
from weft.checkpoints.tensors import assign_tensors
from weft.core.model import LanguageModel
from weft.interop.huggingface.folder import read_raw
from weft.interop.huggingface.generation import GENERATION, read_generation, special_ids
from weft.interop.huggingface.stored import COPY_AGAIN, Stored, listed, open_stored
from weft.interop.huggingface.text import folder_tokenizer
from weft.interop.huggingface.with_code import KEY, MODEL_TYPE, PREFIX, build, tied_names
from weft.tokenizers import Tokenizer, load_tokenizer
from weft.tokenizers.base import SETTINGS_FILE
from weft.tokenizers.config import known_tokenizers


def load_with_code(folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Loaded:
    """The model and tokenizer of a folder that `write_with_code` or, from there, `transformers` wrote.

    Args:
        device: where the model goes.
        dtype: of the weights; None: as they are stored.

    Raises:
        CheckpointError: listing everything that is wrong.
    """
    raw = read_raw(folder)
    model = build(raw.get(KEY), str(folder / CONFIG_FILE))
    assign_tensors(model, _tensors(model, open_stored(folder), folder), where=str(folder))
    generation = read_generation(folder)
    facts = {"family": MODEL_TYPE, "kept": {**special_ids(generation), **special_ids(raw)},
             **({GENERATION: generation} if generation else {})}
    model = model.to(device=device, dtype=dtype).eval()
    return Loaded(model, _tokenizer(folder, model.vocab_size), model.config, None, facts, folder)


def _tensors(model: LanguageModel, stored: Stored, folder: Path) -> dict[str, Tensor]:
    """The stored tensors by the model's names. Of tied tensors, files hold any one."""
    tied = tied_names(model)
    found: dict[str, Tensor] = {}
    problems: list[str] = []
    for name in stored.entries:
        own = name.removeprefix(PREFIX)
        tensor, own = stored.get(name), tied.get(own, own)
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            problems.append(f"{name}: holds NaN.")
        if own in found and not torch.equal(found[own], tensor):
            problems.append(f"{name}: differs from {own}, though the configuration ties them.")
        found[own] = tensor
    if problems:
        raise listed(problems, "tensor", folder, COPY_AGAIN)
    return found


def _tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """Weft's own, where it lies beside, else that of `transformers`."""
    if (folder / SETTINGS_FILE).is_file():
        return load_tokenizer(folder, kinds=known_tokenizers())
    return folder_tokenizer(folder, vocab_size)
