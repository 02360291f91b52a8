"""What is computed again for the backward pass is what was computed: the gradients of every layer are the same with
activations kept and made again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.core.config import parse_part
from weft.core.declarations import Trait
from weft.core.layer import traits_of
from weft.core.part_config import Dims, PartConfig
from weft.core.registry import REGISTRY
from weft.core.span import Memory, Span
from weft.models.decoder import Decoder


def layers() -> Iterator[Any]:
    for part in [*REGISTRY.parts("mixer"), *REGISTRY.parts("feedforward")]:
        for index, config in enumerate(part.examples()):
            if Trait.BIDIRECTIONAL not in traits_of(config.build(Dims(8, 11, 32))):
                yield pytest.param(config, id=f"{part.kind} {index}")


def gradients(model: Decoder, x: Tensor, memory: Memory, keep: Any) -> list[Tensor | None]:
    model.stack.kept_activations = keep
    torch.manual_seed(0)  # of dropout
    out = model(x, None, Span(memory=memory))
    losses = [out.y.square().sum(), *(loss.value for loss in out.losses)]
    torch.stack(losses).sum().backward()
    found = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("config", list(layers()))
def test_gradients_are_those_of_activations_that_were_kept(config: PartConfig) -> None:
    torch.manual_seed(0)
    layers = [each for each in (config.giver(), config, "mlp") if each is not None]
    model: Any = parse_part(("model",), {"kind": "decoder", "vocab_size": 11, "d_model": 8, "blocks": [
        {"kind": "pre", "layers": layers}]}).build(Dims(8)).double().train()
    x, memory = torch.randint(11, (2, 9)), Memory(torch.randn(2, 5, 8, dtype=torch.float64))
    kept, made_again = (gradients(model, x, memory, keep) for keep in ("everything", "inputs"))
    assert any(grad is not None for grad in kept)
    for one, other in zip(kept, made_again, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)  # type: ignore[arg-type]
