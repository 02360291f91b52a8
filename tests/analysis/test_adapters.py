"""What adapters reach, against numbers counted by hand; and adapters that no gradient reaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from linear.small import LAYERS, described, model
from training.tiny_runs import tiny_run
from weft.analysis.adapter_reach import Coverage, Reached, coverage
from weft.checkpoints import save_checkpoint
from weft.core.config import parse_part
from weft.core.errors import TrainingError
from weft.training import train
from weft.training.trainer import AdapterCheck

SMALL = [{"kind": "attention", "n_heads": 2}, {"kind": "mlp", "d_ff": 12, "bias": False}]


def reached(rewrites: list[Any], layers: list[Any] = SMALL, **options: Any) -> dict[str, Reached]:
    found = coverage(model(rewrites, layers, **options), 5)
    assert isinstance(found, Coverage)
    return {each.kind: each for each in found.kinds}


@pytest.mark.parametrize("under", [[], ["int8"]])
def test_matrices_parameters_and_operations_are_counted(under: list[Any]) -> None:
    """Attention: 8 x 24 and 8 x 8; of qkv a third is adapted. Scores and their use of values: 2 x 2 x 5 x 8 operations
    a token. Feed-forward: twice 8 x 12."""
    found = reached([*under, {"kind": "lora", "rank": 2, "maps": ["qkv.v", "up"]}])
    attention, mlp, whole = found["attention projections"], found["feed-forward"], found["all"]
    assert (attention.matrices, attention.all_matrices, attention.numbers, attention.all_numbers) == (1, 2, 64, 256)
    assert attention.flops == pytest.approx(1 / 4)
    assert (mlp.matrices, mlp.all_matrices, mlp.numbers, mlp.all_numbers) == (1, 2, 96, 192) and mlp.flops == 0.5
    assert (whole.matrices, whole.numbers) == (2, 160)
    assert whole.flops == pytest.approx(2 * 160 / (2 * (256 + 192 + 88) + 4 * 5 * 8))


@pytest.mark.parametrize("dora", [False, True])
def test_matrices_that_a_part_reads_are_counted(dora: bool) -> None:
    """An LSTM of 8 has two matrices of 32 x 8; a convolution of two taps is one of 16 x 16. A token takes one product
    with each, and the readout is 8 x 11."""
    rewrite = {"kind": "lora", "rank": 2, "maps": ["recurrent", "convolution"], "dora": dora}
    found = reached([rewrite], layers=["lstm", {"kind": "gated_convolution", "d_conv": 2, "bias": False}])
    lstm, convolution, whole = found["lstm"], found["gated_convolution"], found["all"]
    assert (lstm.matrices, lstm.all_matrices, lstm.numbers, lstm.flops) == (1, 2, 256, 0.5)
    assert (convolution.matrices, convolution.all_matrices, convolution.numbers) == (1, 1, 256)
    assert convolution.flops == 1
    assert whole.flops == pytest.approx(512 / (3 * 256 + 88))


def test_a_tied_readout_counts_once() -> None:
    found = reached([{"kind": "lora", "rank": 2, "maps": ["readout"]}])
    assert (found["embeddings"].matrices, found["embeddings"].all_matrices, found["embeddings"].numbers) == (1, 1, 88)
    assert found["logits"].flops == 1


def test_a_plan_shows_it_and_so_does_the_beginning_of_a_run(tmp_path: Path) -> None:
    config: Any = parse_part(("model",), described([{"kind": "lora", "rank": 2}], LAYERS[:2]))
    found = weft.plan(config).adapters
    assert found is not None and found.trained == sum(
        p.numel() for p in config.build().parameters() if p.requires_grad)
    assert weft.plan(parse_part(("model",), described([], LAYERS[:2]))).adapters is None  # type: ignore[arg-type]
    notices = list[str]()
    run = tiny_run(tmp_path, {**described([{"kind": "lora", "rank": 2}], SMALL), "vocab_size": 300}, steps=1)
    train(run, tmp_path / "run", on_event=lambda event: notices.append(event.line()))
    line = next(each for each in notices if each.startswith("adapters: "))
    assert line == ("adapters: 176 of 3,048 parameters train (5.77%); reached of all 4 of 5 matrices, 15.6% of "
                    "parameters, 13.3% of operations; attention projections 2 of 2 matrices, 100.0% of parameters, "
                    "100.0% of operations; feed-forward 2 of 2 matrices, 100.0% of parameters, 100.0% of operations; "
                    "not reached: embeddings, norms, attention scores, logits")


def silent(found: Any) -> list[str]:
    check = AdapterCheck(found, 2)
    for step in range(2):
        found.zero_grad()
        found(torch.arange(6)[None]).y.square().sum().backward()
        check.after(step)
        with torch.no_grad():
            for p in found.parameters():
                if p.grad is not None:
                    p -= 0.1 * p.grad
    return []


def test_adapters_behind_a_matrix_of_zeros_have_two_steps() -> None:
    found = model([{"kind": "lora", "rank": 2, "maps": ["qkv", "output"]}], SMALL)
    layer = found.stack.layers[0].layers[0]
    torch.nn.init.zeros_(layer.output.base.weight)
    torch.nn.init.zeros_(layer.output.b.weight)
    assert silent(found) == []


def test_one_without_a_gradient_is_an_error_that_names_it() -> None:
    found = model([{"kind": "lora", "rank": 2, "maps": ["qkv", "up"]}], SMALL)
    torch.nn.init.zeros_(found.stack.layers[0].layers[0].output.weight)
    message = (r"model.rewrites: after 2 steps these adapters have no gradient: stack.layers.0.layers.0.qkv. Leave "
               r"them out of the rewrite's maps")
    with pytest.raises(TrainingError, match=message):
        silent(found)


def test_experts_to_which_no_token_was_routed_count_with_the_others() -> None:
    experts = {"kind": "moe", "n_experts": 8, "top_k": 1, "expert": {"kind": "glu", "d_ff": 6}}
    found = model([{"kind": "lora", "rank": 2, "maps": ["experts"]}], [experts])
    found(torch.arange(2)[None]).y.square().sum().backward()
    assert any(p.grad is None or not p.grad.any() for p in found.parameters() if p.requires_grad)
    AdapterCheck(found, 1).after(0)


def test_a_run_stops_where_adapters_are_not_reached(tmp_path: Path) -> None:
    before = model([], SMALL, vocab_size=300).float()
    torch.nn.init.zeros_(before.stack.layers[0].layers[0].output.weight)
    save_checkpoint(tmp_path / "before", before, None)
    described_model = {**described([{"kind": "lora", "rank": 2, "maps": ["qkv"]}], SMALL), "vocab_size": 300}
    run = tiny_run(tmp_path, described_model, steps=3).model_copy(update={"start": str(tmp_path / "before")})
    with pytest.raises(TrainingError, match=r"after 2 steps these adapters have no gradient: stack.layers.0.layers.0"):
        train(run, tmp_path / "run")
