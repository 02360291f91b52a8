"""Write tests/interop/huggingface/stored_transfo_xl.json anew: `python -m against_transformers.store_transfo_xl` in
tests, in an environment with transformers 4.37.2, torch and safetensors.

Later versions of transformers have no Transformer-XL, so the comparison is with numbers that 4.37.2 gave: the script
needs nothing of Weft, and the tests need nothing of transformers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from interop.huggingface.tiny_folders import STORED_DROPPED, weights

VERSION = "4.37.2"
TINY = {"vocab_size": 53, "cutoffs": [11, 29], "d_model": 12, "d_embed": 12, "n_head": 3, "d_head": 5, "d_inner": 10,
        "div_val": 2, "n_layer": 3, "mem_len": 5, "clamp_len": 4}
CASES: dict[str, dict[str, Any]] = {
    "transfo-xl": {},
    "segments": {"same_length": False, "tgt_len": 6, "mem_len": 4, "clamp_len": -1},
    "narrow": {"d_embed": 9, "proj_share_all_but_first": False, "clamp_len": 3},
    "one_width": {"div_val": 1, "tie_word_embeddings": False},
    "one_narrow_width": {"div_val": 1, "d_embed": 6, "proj_share_all_but_first": False},
    "plain": {"div_val": 1, "cutoffs": [], "d_embed": 8},
    "pre_norm": {"pre_lnorm": True, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3}}
ROW = [5, 52, 12, 0, 7, 7, 3, 29, 28, 11, 10, 36, 4, 9, 41, 2, 6, 30]
SEGMENT = 6
"""Tokens of each call; the memory goes from one to the next."""
KEPT = 10
"""Positions whose logits are stored, the last ones, of two calls."""


def logits(model: Any, row: list[int]) -> torch.Tensor:
    """Log-probabilities [T,V] of the row, in segments. With norms before the layers the memory begins empty, as in the
    paper; else with zeros, as the class does by itself."""
    mems = [torch.zeros(0, 1, model.config.d_model)] * model.config.n_layer if model.config.pre_lnorm else None
    found = []
    for first in range(0, len(row), SEGMENT):
        out = model(torch.tensor([row[first:first + SEGMENT]]), mems=mems)
        found.append(out.prediction_scores[0])
        mems = out.mems
    return torch.cat(found)


def stored_case(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What is stored of a case: as `store.stored_case`, with more logits."""
    model = transformers.TransfoXLLMHeadModel(transformers.TransfoXLConfig(**TINY | values))
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    shapes = {name: list(tensor.shape) for name, tensor in load_file(file).items() if "inv_freq" not in name}
    save_file(weights(shapes), file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("transformers_version")
    with torch.no_grad():
        found = logits(transformers.TransfoXLLMHeadModel.from_pretrained(folder).eval(), ROW)
    return {"config": config, "shapes": shapes, "row": ROW,
            "logits": [[round(float(value), 6) for value in each] for each in found[-KEPT:]]}


def main() -> None:
    """Write the file."""
    if transformers.__version__ != VERSION:
        raise SystemExit(f"transformers {transformers.__version__} is installed, and the numbers are of {VERSION}. "
                         f"Run this in an environment with transformers=={VERSION}.")
    with tempfile.TemporaryDirectory() as place:
        cases = {name: stored_case(values, Path(place) / name) for name, values in CASES.items()}
    lines = ",\n".join(f'"{name}": {json.dumps(case)}' for name, case in cases.items())
    STORED_DROPPED.write_text(f'{{"transformers": "{VERSION}", "cases": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
