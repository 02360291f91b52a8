"""Gradients and buffers that are collected in few calls, as on a GPU, are those that are collected one by one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.core.model import built_model
from weft.training import parse_run
from weft.training.precision import Precision, collect_together

MODEL: dict[str, Any] = {"kind": "decoder", "vocab_size": 11, "d_model": 8, "context": 8, "norm": "rmsnorm", "blocks": [
    {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}, {"kind": "mlp", "d_ff": 12}]}, {
        "kind": "pre", "norm": "batchnorm", "layers": ["lstm"]}]}


def gradients(together: bool) -> dict[str, Tensor]:
    """Of two batches of a step, the second of which reaches a parameter that the first does not."""
    torch.manual_seed(0)
    precision = Precision(built_model(parse_run({"model": MODEL}).model), torch.bfloat16)
    for batch in range(2):
        generator = torch.Generator().manual_seed(batch)
        for place, copy in enumerate(precision.working.parameters()):
            if place or batch:
                copy.grad = torch.randn(copy.shape, generator=generator).to(copy.dtype)
        for buffer in precision.working.buffers():
            buffer += 1
        collect_together(precision.model, precision.working) if together else precision.collect_gradients()
        assert all(copy.grad is None for copy in precision.working.parameters())
    found = {name: weight.grad for name, weight in precision.model.named_parameters() if weight.grad is not None}
    return {**found, **{f"buffer {name}": each for name, each in precision.model.named_buffers()}}


def test_they_are_those_collected_one_by_one() -> None:
    found, expected = gradients(together=True), gradients(together=False)
    assert found.keys() == expected.keys() and any(name.startswith("buffer") for name in found)
    for name, each in expected.items():
        assert torch.equal(found[name], each), name
        assert found[name].dtype is each.dtype
