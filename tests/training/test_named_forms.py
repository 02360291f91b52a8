"""A form that a run names and that cannot serve its model is refused before the run's folder is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from training.tiny_runs import write_text
from weft.core.base_model import built_empty
from weft.core.errors import UnsupportedError
from weft.training import RunConfig, parse_run
from weft.training.requirements import require_served
from weft.training.run_training import train

LAYER = {"kind": "attention", "n_heads": 2}


def run_with(kernels: dict[str, str], layer: Any = LAYER, *, text: str = "absent.txt", norm: str = "layernorm",
             **training: Any) -> RunConfig:
    """A run of a decoder with this layer, whose operations take the forms that ``kernels`` names."""
    return parse_run({"model": {"kind": "decoder", "d_model": 8, "context": 16, "vocab_size": 300,
                                "blocks": [{"kind": "pre", "norm": norm, "layers": [layer]}]},
                      "kernels": kernels, "data": {"path": text},
                      "training": {"steps": 2, "batch_size": 2, "compute": {"matmul": "default"}, **training}})


REFUSED = [
    ({"attention": "native"}, {**LAYER, "position": "transformer_xl"}, {},
     "kernels.attention: the form 'native' of 'attention' cannot serve this call: a bias depends on more than "
     "distance. Those that can: "),
    ({"attention": "native"}, {**LAYER, "mask": "causal & strided(4)"}, {},
     "kernels.attention: the form 'native' of 'attention' cannot serve this call: "),
    ({"attention": "native"}, LAYER, {"dtype": "float64"}, "it runs only in bfloat16 or float32"),
    # Gradients are recorded in training and not in evaluation, which comes some steps later.
    ({"rms_norm": "lean"}, LAYER, {}, "it runs only with gradients. Those that can: "),
    ({"attention": "grouped_rows"}, LAYER, {}, "it runs only without gradients. Those that can: "),
]


@pytest.mark.parametrize(("kernels", "layer", "training", "said"), REFUSED,
                         ids=["biases", "mask", "dtype", "evaluation", "training"])
def test_a_form_that_cannot_serve_is_refused_before_a_folder_is_made(
        kernels: dict[str, str], layer: Any, training: dict[str, Any], said: str, tmp_path: Path) -> None:
    config = run_with(kernels, layer, norm="rmsnorm", text=str(write_text(tmp_path)), **training)
    with pytest.raises(UnsupportedError) as caught:
        train(config, tmp_path / "run")
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("kernels", "layer", "training"), [
    ({}, {**LAYER, "position": "transformer_xl"}, {}),
    ({"attention": "native"}, {**LAYER, "position": "rope"}, {}),
    ({"attention": "native"}, LAYER, {"dtype": "bfloat16"}),
    ({"attention": "sdpa", "dropout": "library"}, LAYER, {}),
    ({"attention": "reference"}, {**LAYER, "position": "transformer_xl"}, {"dtype": "float64"}),
    # It serves only batches in which documents begin: what the text holds decides.
    ({"s4d": "documents"}, "s4d", {})],
    ids=["none named", "native", "bfloat16", "two", "reference", "documents"])
def test_others_are_not(kernels: dict[str, str], layer: Any, training: dict[str, Any]) -> None:
    config = run_with(kernels, layer, **training)
    model = built_empty(config.model)
    dtypes = [each.dtype for each in model.parameters()]
    require_served(config, model, "cpu")
    assert model.training and [each.dtype for each in model.parameters()] == dtypes
    assert all(each.device.type == "meta" for each in model.parameters()), "the model is left as it was"


def test_other_devices_are_left_to_the_run() -> None:
    config = run_with({"attention": "native"}, {**LAYER, "position": "transformer_xl"})
    require_served(config, built_empty(config.model), torch.device("meta"))
