"""Opening a folder that holds an adapter alone, in either format.

Merging adapters into the matrices under them, with the difference that it makes.
"""

from __future__ import annotations

from pathlib import Path

import torch

from weft.checkpoints.layout import PEFT_FILE
from weft.checkpoints.load import Loaded
from weft.core.errors import InputError
from weft.core.model import Model, ModelConfig
from weft.interop.adapters.base import BASE, read_own
from weft.interop.adapters.peft import read_peft
from weft.interop.verify import a_tensor, bound_of, largest_difference, logits_of, probe, require_close
from weft.linear.merging import merged


def load_adapted(folder: Path, *, base: str | None = None, device: torch.device | str = "cpu",
                 dtype: torch.dtype | None = None) -> Loaded:
    """The model under an adapter, with the adapter and the model's tokenizer.

    Args:
        base: the model under it; None: the one that the folder names.
        device: where the model goes.
        dtype: of all weights; None: as the model's are stored.

    Raises:
        CheckpointError: a file is damaged or missing, or the model is another one.
        UnsupportedError: the model has no family that the adapter's format needs.
    """
    found = (read_peft if (folder / PEFT_FILE).is_file() else read_own)(folder, base=base, dtype=dtype)
    found.model.to(device)
    return found


def adapted_config(folder: Path) -> ModelConfig:
    """The configuration of `load_adapted`'s model, for which the weights are read too."""
    return load_adapted(folder).config


def merged_within_bounds(model: Model) -> tuple[Model, float | None, float | None]:
    """The model with one matrix for each map, the largest difference of its logits from those of the model with
    rewrites, and the difference above which merging is refused: 1e-6 of the largest logit, or of 1 if that is larger,
    in float64, 1e-3 in float32, a quarter in bfloat16, in which W + s B A is rounded to 8 bits. The differences are
    None where it is the same model.

    Raises:
        UnsupportedError: two parts shared a matrix that is no longer the same in both.
        LawError: a merged map does not compute what the rewritten one does.
        FailedError: logits differ by more than the bound.
    """
    plain = merged(model)
    if plain is model:
        return model, None, None
    tokens = probe(model)
    before = logits_of(model.eval(), tokens)
    difference, dtype = largest_difference(before, logits_of(plain.eval(), tokens)), a_tensor(plain).dtype
    require_close(difference, before, (dtype,), "the model with its rewrites merged")
    return plain, difference, bound_of(before, (dtype,))


def base_of(loaded: Loaded, given: str | None) -> str:
    """Where the model under a model's adapters is. Raises `InputError`: nothing says it."""
    found = given or loaded.facts.get(BASE) or (loaded.run or {}).get("start")
    if found is None:
        raise InputError("nothing says on which model the adapter is to be put: its run started from none.",
                         where="base", remedy="Name it with --base (base=).")
    return str(Path(found).resolve()) if Path(found).exists() else str(found)
