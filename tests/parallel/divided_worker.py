"""What each of two processes of `test_divided` does: runs with adapters, runs that are compiled, some of them with rows
that are cut, and steps that draw at random."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from parallel.mesh_worker import ATTENTION, FEW, SHARD, TENSOR, run
from weft.tasks.classify_tokens import ClassifyTokensConfig
from weft.tasks.masked import MaskedConfig
from weft.training import RunConfig, train
from weft.training.gradient import compiled
from weft.training.material import prepare
from weft.training.parallel import World
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

ADAPTERS = {"kind": "lora", "rank": 2, "maps": ["qkv.q", "qkv.v", "output", "up", "down", "input", "select"]}
CONTEXT = {"context": 2}


def adapted(folder: Path, mesh: dict[str, int] | None) -> RunConfig:
    """A run that trains adapters beside maps of every way to divide."""
    return run(folder, mesh, [["mamba"], [ATTENTION, "mlp"]], steps=FEW, model={"rewrites": [ADAPTERS]})


def traced(folder: Path, mesh: dict[str, int] | None) -> RunConfig:
    """A run that is compiled, where it has a mesh."""
    return run(folder, mesh, [["attention", "mlp"]], steps=FEW,
               compute={"matmul": "default", "compile": mesh is not None})


def cut(folder: Path, mesh: dict[str, int] | None) -> RunConfig:
    """A run whose rows are cut, of layers that compose maps and take turns; its blocks run again."""
    return run(folder, mesh, [["gated_linear_attention", "gru"]], steps=FEW,
               compute={"matmul": "default", "compile": mesh is not None, "checkpoint_activations": True})


def masked(folder: Path, mesh: dict[str, int] | None) -> RunConfig:
    """A run of an encoder."""
    attention = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
    blocks = [{"kind": "post", "layers": [attention, "mlp"]}]
    config = run(folder, mesh, [], steps=FEW, model={
        "kind": "encoder", "vocab_size": 258, "head": "masked_token", "blocks": blocks})
    return config.model_copy(update={"task": MaskedConfig()})


def tagged(folder: Path, mesh: dict[str, int] | None) -> RunConfig:
    """A run of an encoder on words with classes, whose rows are padded."""
    attention = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
    config = run(folder, mesh, [], steps=FEW, model={
        "kind": "encoder", "head": {"kind": "per_token", "labels": ["a", "b"]}, "vocab_size": 257,
        "position": "learned", "blocks": [{"kind": "post", "layers": [attention, "mlp"]}]})
    data = config.data.model_copy(update={"path": str(folder / "words.jsonl"), "documents": "file"})
    return config.model_copy(update={"task": ClassifyTokensConfig(), "data": data})


def random(folder: Path) -> RunConfig:
    """A run that draws at random in divided layers and in whole ones, for two processes with a head each."""
    head = {"kind": "attention", "n_heads": 2, "scores": {"dropout": 0.5}}
    return run(folder, TENSOR, [[head]], steps=FEW, optimizer={"kind": "sgd"}, model={
        "rewrites": [{**ADAPTERS, "dropout": 0.5, "maps": ["qkv", "output"]}], "embedding": {"dropout": 0.2},
        "blocks": [{"kind": "pre", "dropout": 0.3, "layers": [head]}]})


def drawn(config: RunConfig, world: World) -> dict[str, Tensor]:
    """What this process draws in a step: the outputs of its head, whose weights are those of the other one, what is
    dropped beside its output, and what follows; and what it has after some steps of the parameters of all."""
    torch.manual_seed(0)
    model, found = build_model(config), dict[str, Tensor]()
    with torch.no_grad():
        for parameter in model.stack.layers[0].layers[0].qkv.base.parameters():
            parameter.unflatten(0, (3, 2, -1))[:, 1] = parameter.unflatten(0, (3, 2, -1))[:, 0]
    trainer = Trainer(config, model, prepare(config).train, steps=FEW, device="cpu", world=world)
    block = trainer.model.stack.layers[0]
    output = block.layers[0].output
    hooks = [output.register_forward_pre_hook(lambda _, inputs: found.update(head=inputs[0].clone())),
             output.dropout.register_forward_hook(lambda _, inputs, y: found.update(dropped=y == 0)),
             block.register_forward_hook(lambda _, inputs, y: found.update(block=y.y.clone(), next=torch.rand(3)))]
    trainer.advance()
    for hook in hooks:
        hook.remove()
    trainer.advance()
    whole = {name: each.detach() for name, each in trainer.model.named_parameters() if name not in trainer.held.layouts}
    return {**found, **whole}


def worker(folder: Path) -> None:
    torch.set_num_threads(1)
    with World.here() as world:
        train(adapted(folder, TENSOR), folder / "tensor-adapted", world=world)
        train(tagged(folder, CONTEXT), folder / "context-tagged", world=world)
        torch.save(drawn(random(folder), world), folder / f"{os.environ['RANK']}.pt")


def compiles(folder: Path) -> None:
    """Compiled runs, and one of an encoder, whose rows are cut as theirs are."""
    torch.set_num_threads(1)
    with World.here() as world, patch("weft.training.trainer.compiled", partial(compiled, backend="aot_eager")):
        for name, mesh in (("shard", SHARD), ("tensor", TENSOR)):
            train(traced(folder, mesh), folder / f"{name}-traced", world=world)
        for name, config in (("cut", cut(folder, CONTEXT)), ("masked", masked(folder, CONTEXT))):
            torch._dynamo.utils.counters.clear()
            train(config, folder / f"context-{name}", world=world)
            assert not torch._dynamo.utils.counters["graph_break"], "the operators that communicate are traced"
