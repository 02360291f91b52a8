"""Write tests/interop/huggingface/stored_images.json anew: `python -m against_transformers.store_images` in tests."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from against_transformers.tiny import Case, saved
from interop.huggingface.tiny_folders import weights

STORED = Path(__file__).parents[1] / "interop" / "huggingface" / "stored_images.json"
SHAPES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 10}
CASES = {
    "vit-classes": Case("", "ViTConfig", "ViTForImageClassification", {**SHAPES, "image_size": 8, "patch_size": 4,
                                                                       "num_labels": 3}),
    "vit-bare": Case("", "ViTConfig", "ViTModel", {**SHAPES, "image_size": [4, 6], "patch_size": 2, "num_channels": 1,
                                                   "qkv_bias": False}),
}


def stored_case(case: Case, folder: Path) -> dict[str, Any]:
    """What is stored of a case: its result for an image of sines."""
    model = saved(case, folder)
    file = folder / "model.safetensors"
    shapes = {name: list(tensor.shape) for name, tensor in load_file(file).items()}
    save_file(weights(shapes), file, metadata={"format": "pt"})
    model = type(model).from_pretrained(folder).eval()
    config = json.loads((folder / "config.json").read_text())
    config.pop("transformers_version")
    height, width = (case.values["image_size"],) * 2 if isinstance(case.values["image_size"], int) else (
        case.values["image_size"])
    size = (config["num_channels"], height, width)
    with torch.no_grad():
        result = model(torch.arange(size[0] * height * width).sin().reshape(1, *size))
    values = result.last_hidden_state if case.model == "ViTModel" else result.logits
    return {"config": config, "shapes": shapes, "found": [[round(float(each), 6) for each in row] for row in values]
            if values.dim() == 2 else [[[round(float(each), 6) for each in row] for row in image] for image in values]}


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as place:
        cases = {name: stored_case(case, Path(place) / name) for name, case in CASES.items()}
    lines = ",\n".join(f'"{name}": {json.dumps(case)}' for name, case in cases.items())
    STORED.write_text(f'{{"transformers": "{transformers.__version__}", "cases": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
