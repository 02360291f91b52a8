"""Masks that alternate by layer, in the configuration that the documentation shows."""

from __future__ import annotations

from pathlib import Path

import torch

from weft import read_run
from weft.core.model import LanguageModel
from weft.masks import reach
from weft.mixers.attention import Attention

EXAMPLE = Path(__file__).parents[2] / "examples" / "alternating.yaml"


def test_the_example_alternates_dense_and_banded_layers_and_decodes_as_it_runs_whole() -> None:
    """GPT-3's alternation, written in YAML alone."""
    config = read_run(EXAMPLE, ["model.vocab_size=50"]).model
    torch.manual_seed(0)
    model = config.build().double().eval()
    assert isinstance(model, LanguageModel)
    masks = [module.mask for module in model.modules() if isinstance(module, Attention)]
    assert [repr(mask) for mask in masks] == ["causal", "causal & window(64)"] * 3
    assert reach(masks, 100).max_path_length() == 1
    assert reach(masks[::-1], 200).max_path_length() == 2
    tokens = torch.randint(50, (1, 150), generator=torch.Generator().manual_seed(0))
    state, found = model.init_state(1), []
    with torch.no_grad():
        whole = model(tokens).y
        for piece in tokens.split([1, 70, 1, 1, 70, 7], 1):
            out = model(piece, state)
            state = out.state
            found.append(out.y)
    # Some hundred roundings of logits near 1 in float64.
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=0, atol=1e-11)
    kept = [tensor.shape[2] for name, (tensor, _) in state.tensors().items() if name.endswith("keys")]
    assert kept == [150, 64] * 3
