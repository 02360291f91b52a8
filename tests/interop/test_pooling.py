"""From multi-head to grouped-query attention: what the conversion keeps, and that training goes on from it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from linear import small
from taken_back import taken_back
from weft import api
from weft.checkpoints import save_checkpoint
from weft.cli.main import app
from weft.core.registry import load_plugin
from weft.interop.pooling import pool_heads
from weft.tokenizers import CharacterTokenizer
from weft.training import parse_run, train

TEXT = "ten green bottles hanging on the wall, and nine\n" * 60
ATTENTION = {"kind": "attention", "n_heads": 4, "d_head": 4, "position": "rope"}


def config(layer: Any, **fields: Any) -> dict[str, Any]:
    return small.described([], [layer, {"kind": "glu", "d_ff": 24}], d_model=16, **fields)


def run_from(place: Path, steps: int, **fields: Any) -> Any:
    return parse_run({"data": {"path": str(place / "text.txt")},
                      "training": {"steps": steps, "batch_size": 8, "optimizer": {"kind": "adamw", "lr": 0.01},
                                   "compute": {"matmul": "default"}},
                      "report": {"eval_every": steps, "eval_batches": 2}, **fields})


def loss(model: Any, tokens: Tensor) -> float:
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(tokens[:, :-1]).y.flatten(0, 1),
                                                       tokens[:, 1:].flatten()))


def test_a_checkpoint_is_converted_and_trained_on(tmp_path: Path) -> None:
    """MHA of 4 heads, trained, then 2 key/value heads from the command line, then a few steps more: the loss that
    pooling cost comes back, and the state has half the bytes."""
    (tmp_path / "text.txt").write_text(TEXT)
    tokenizer = CharacterTokenizer.train([TEXT])
    save_checkpoint(tmp_path / "fresh", parse_run({"model": config(ATTENTION, vocab_size=tokenizer.vocab_size)}
                                                  ).model.build(), tokenizer)
    train(run_from(tmp_path, 60, start=str(tmp_path / "fresh")), tmp_path / "mha")
    done = CliRunner().invoke(app, ["convert", str(tmp_path / "mha"), str(tmp_path / "gqa"), "--to", "weft",
                                    "--n-kv-heads", "2"])
    assert done.exit_code == 0 and "train further before use" in done.output
    train(run_from(tmp_path, 40, start=str(tmp_path / "gqa")), tmp_path / "uptrained")
    names = ("mha", "gqa", "uptrained")
    models = {name: api.load(tmp_path / name).model for name in names}
    tokens = torch.tensor([tokenizer.encode(TEXT[:200])])[:, :33]
    before, pooled, after = (loss(models[name], tokens) for name in names)
    assert pooled > before + 0.05 and after < (before + pooled) / 2
    sizes = [models[name].init_state(1, capacity=32).nbytes() for name in names]
    assert sizes[1] == sizes[2] < sizes[0]
    assert models["uptrained"].config.blocks[0].layers[0].n_kv_heads == 2  # type: ignore[union-attr]


def test_latent_attention_beside_it_stays() -> None:
    layers = [ATTENTION, {"kind": "latent_attention", "n_heads": 4}]
    model = small.model([], layers, d_model=16)
    pooled = pool_heads(model, 1)
    before, after = model.state_dict(), pooled.state_dict()
    same = [name for name in before if before[name].shape == after[name].shape and torch.equal(before[name],
                                                                                             after[name])]
    assert set(before) - set(same) == {"stack.layers.0.layers.0.qkv.weight"}


@pytest.fixture
def sinks() -> Iterator[Any]:
    """A mixer of another kind that is attention."""
    with taken_back():
        load_plugin(Path(__file__).parents[2] / "examples" / "sink_attention.py")
        yield sys.modules["weft_plugin_sink_attention"]


def test_attention_of_another_kind_is_pooled_too(sinks: Any) -> None:
    model = small.model([], [{**ATTENTION, "kind": "sink_attention"}], d_model=16)
    pooled = pool_heads(model, 2)
    assert pooled.stack.layers[0].layers[0].sizes.kv_heads == 2  # type: ignore[union-attr, index]
