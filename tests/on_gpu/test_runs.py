"""Training, resuming and decoding on a GPU, as on the CPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import weft
from training.tiny_runs import ATTENTION, LSTM, same_weights, tiny_run
from weft.checkpoints import load_checkpoint
from weft.training import RunConfig, parse_run, train

MAMBA: dict[str, Any] = {"kind": "decoder", "d_model": 12, "context": 8,
                         "blocks": [{"kind": "pre", "layers": ["mamba"]}]}
MIXTURE: dict[str, Any] = {"kind": "decoder", "d_model": 12, "context": 8, "blocks": [{"kind": "pre", "layers": [
    {"kind": "attention", "n_heads": 2, "position": "rope"},
    {"kind": "moe", "n_experts": 4, "expert": {"kind": "glu", "d_ff": 8}}]}]}
MODELS = {"lstm": LSTM, "attention": ATTENTION, "mamba": MAMBA, "experts": MIXTURE}


def still(model: dict[str, Any]) -> dict[str, Any]:
    """Without dropout, whose random numbers differ between devices."""
    return {name: value for name, value in model.items() if name != "embedding"}


def keeping_all(run: RunConfig) -> RunConfig:
    """Also the checkpoint of step 10 where step 20 was better."""
    return parse_run(run.dump(), ["report.keep=1"])


def losses(out: Path) -> list[float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.parametrize("compiled", [False, "blocks"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_losses_are_those_of_the_cpu(tmp_path: Path, model: dict[str, Any], compiled: bool | str) -> None:
    """float32 (6e-8) over 20 steps, in which Adam divides small gradients by their own size."""
    run = tiny_run(tmp_path, still(model), dtype="float32", compute={"matmul": "default", "compile": compiled})
    for device in ("cpu", "cuda"):
        train(run, tmp_path / f"on_{device}", device=device)
    assert len(losses(tmp_path / "on_cpu")) > 2
    assert losses(tmp_path / "on_cuda") == pytest.approx(losses(tmp_path / "on_cpu"), rel=1e-3)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("settings", [{}, {"dtype": "float32", "compute": {"compile": False}},
                                      {"compute": {"matmul": "default", "compile": True}}],
                         ids=["as by default", "float32", "compiled"])
def test_a_run_goes_on_as_it_began(tmp_path: Path, model: dict[str, Any], settings: dict[str, Any]) -> None:
    run = keeping_all(tiny_run(tmp_path, model, **settings))
    train(run, tmp_path / "run", device="cuda")
    whole = load_checkpoint(tmp_path / "run/checkpoints/00000020").model
    shutil.rmtree(tmp_path / "run/checkpoints/00000020")
    train(run, tmp_path / "run", device="cuda", resume=True)
    assert same_weights(load_checkpoint(tmp_path / "run/checkpoints/00000020").model, whole)


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_greedy_text_is_that_of_the_cpu(tmp_path: Path, model: dict[str, Any], compiled: bool) -> None:
    train(tiny_run(tmp_path, still(model), steps=40), tmp_path / "run", device="cuda")
    texts = [weft.generate(weft.load(str(tmp_path / "run"), device=device, dtype="float64"), ["line 3: ", "the sum"],
                           max_new_tokens=24, compile=compiled and device == "cuda") for device in ("cpu", "cuda")]
    assert texts[0] == texts[1]
