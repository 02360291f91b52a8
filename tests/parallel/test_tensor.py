"""What tensor parallelism divides, leaves whole and refuses, read from plans without processes; where parts lie."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor.placement_types import Replicate, Shard

import weft
from weft.checkpoints.save import save_checkpoint
from weft.checkpoints.sharded import MODEL, Boxes, StoredTensors
from weft.core.errors import CheckpointError, ConfigError
from weft.linear.linear import DividedDimension
from weft.linear.lora import LoRAConfig
from weft.linear.quantised import Int8Config
from weft.linear.rewrite import rewritten
from weft.models.decoder import Decoder, DecoderConfig
from weft.parallel.fsdp import _shared
from weft.parallel.layout import Layout, boxes
from weft.parallel.sharded_vocabulary import OwnIds
from weft.parallel.tensor import plan_of
from weft.training import parse_run
from weft.training.local_model import holding_problems


def decoder(*layers: Any, **fields: Any) -> Decoder:
    return DecoderConfig.model_validate({"vocab_size": 11, "d_model": 12, "context": 8, "blocks": [
        {"kind": "pre", "layers": list(layers)}], **fields}).build()


def test_a_plan_follows_from_what_parts_declare() -> None:
    model = decoder({"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "bias": "all"}, "glu", "mamba",
                    "lstm", {"kind": "attention", "n_heads": 2, "position": "alibi"})
    plan = plan_of(model, 2)
    placed = plan.placements(model)
    at = "stack.layers.0.layers"
    assert placed[f"{at}.0.qkv.weight"] == placed[f"{at}.0.qkv.bias"] == Shard(0)
    assert placed[f"{at}.0.output.weight"] == placed[f"{at}.2.select.weight"] == Shard(1)
    assert placed[f"{at}.0.output.bias"] == placed["stack.layers.0.norms.0.weight"] == Replicate()
    assert placed["embedding.tokens.weight"] == placed[f"{at}.2.convolution.weight"] == Shard(0)
    assert plan.whole == {f"{at}.3": "it does not say how it divides",
                          f"{at}.4": "its position scheme has values of its own for every head"}


@pytest.mark.parametrize(("layer", "parts", "message"), [
    ({"kind": "attention", "n_heads": 3}, 2, "2 processes do not divide the 3 of n_heads in stack.layers.0.layers.0 "
     "(Attention). Choose a divisor of 3."),
    ({"kind": "attention", "n_heads": 4, "n_kv_heads": 1}, 4, "4 processes do not divide the 1 of n_kv_heads"),
    ({"kind": "mlp", "d_ff": 15}, 2, "2 processes do not divide the 15 of d_ff in stack.layers.0.layers.0 (MLP)"),
    ({"kind": "mamba", "expand": 1}, 5, "5 processes do not divide the 12 of expand d_model")])
def test_numbers_that_do_not_divide_are_refused_with_their_layer(layer: Any, parts: int, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan_of(decoder(layer), parts)


@pytest.mark.parametrize(("layer", "model", "message"), [
    ("mlp", {"rewrites": ["int8"]}, "the model has the rewrite 'int8', whose maps are not divided. Leave tensor out"),
    ("mlp", {"rewrites": [{"kind": "lora", "rank": 2, "dora": True}]},
     "the rewrite 'lora' with dora, which needs the lengths of whole rows"),
    ("lstm", {"readout": {"kind": "linear", "tied": False}, "embedding": {"adaptive": {"cutoffs": [3]}}},
     "no part of this model can be divided")])
def test_models_that_are_not_divided(layer: str, model: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan_of(decoder(layer, **model), 2)


def test_adapters_divide_with_their_maps() -> None:
    model = rewritten(decoder({"kind": "attention", "n_heads": 2}, "mamba", "mlp"), [
        Int8Config(maps=["up"]), LoRAConfig(rank=1, maps=["qkv.q", "output", "step", "up"])])
    plan = plan_of(model, 2)
    placed, at = plan.placements(model), "stack.layers.0.layers"
    assert placed[f"{at}.0.qkv.parts.q.b.weight"] == placed[f"{at}.0.qkv.base.weight"] == Shard(0)
    assert placed[f"{at}.0.output.a.weight"] == placed[f"{at}.0.output.base.weight"] == Shard(1)
    assert placed[f"{at}.0.qkv.parts.q.a.weight"] == placed[f"{at}.0.output.b.weight"] == Replicate()
    assert plan.whole == {
        f"{at}.1": "its map 'step' has an adapter, and divides otherwise than maps that are called",
        f"{at}.2": "its map 'up' has been adapted otherwise than by one LoRA"}


@pytest.mark.parametrize(("mesh", "training", "message"), [
    ({"tensor": 2}, {"optimizer": {"kind": "muon"}}, "training.optimizer.kind: muon does not move every entry by "
     "itself, and training.mesh (tensor 2) gives each process a part of a matrix"),
    ({"shard": 2}, {"optimizer": {"kind": "adafactor"}}, "training.optimizer.kind: adafactor does not move every"),
    ({"shard": 2}, {"compute": {"compile": True}}, ""),
    ({"tensor": 2}, {"compute": {"compile": True}}, ""),
    ({"shard": 2}, {"unfreeze": {}}, "training.unfreeze: with training.mesh (shard 2)"),
    ({"tensor": 2}, {"carry_state": True}, "training.carry_state: with training.mesh (tensor 2), each process would"),
    ({"tensor": 3}, {}, "training.mesh.tensor: 3 processes do not divide the 4 of n_heads"),
    ({"replicate": 2}, {"optimizer": {"kind": "adafactor"}}, "")])
def test_what_a_mesh_cannot_do_is_refused_by_name(mesh: dict[str, int], training: dict[str, Any],
                                                  message: str) -> None:
    config = parse_run({"model": {"kind": "decoder", "d_model": 16, "blocks": [
        {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 4, "mask": "causal & window(4)"}, "mlp"]}]},
        "training": {"mesh": mesh, **training}})
    found = holding_problems(config, config.model.build())
    assert bool(found) == bool(message)
    assert all(problem.startswith(message) for problem in found[:1])


def test_weft_plan_names_the_layers_that_every_process_computes(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: {kind: decoder, vocab_size: 11, d_model: 8, context: 8, blocks: "
                                       "[{kind: pre, layers: [lstm, mlp]}]}\ntraining: {mesh: {tensor: 2}}\n")
    notes = weft.plan(str(tmp_path / "run.yaml")).notes
    assert any("stack.layers.0.layers.0: it does not say how it divides" in note for note in notes)
    with pytest.raises(ConfigError, match="5 processes do not divide the 32 of d_ff"):
        weft.plan(str(tmp_path / "run.yaml"), ["training.mesh.tensor=5"])


@pytest.mark.parametrize(("dim", "sections"), [(0, (4, 2, 2)), (1, (6,)), (1, (2, 4))])
def test_the_parts_of_all_processes_are_the_whole(dim: int, sections: tuple[int, ...]) -> None:
    whole = torch.arange(48.0).view(8, 6)
    joined = torch.full_like(whole, torch.nan)
    for place in range(2):
        layout = Layout.divided(whole.shape, DividedDimension(dim, sections), place, 2)
        for box in boxes(layout.part(whole), layout).held:
            where = tuple(slice(start, start + size) for start, size in zip(box.offsets, box.tensor.shape, strict=True))
            assert bool(joined[where].isnan().all()), "no number twice"
            joined[where] = box.tensor
    assert torch.equal(joined, whole)


def test_ids_are_divided_as_evenly_as_they_can_be() -> None:
    rows = [OwnIds.of(11, place, 3) for place in range(3)]
    assert [(each.first, each.held) for each in rows] == [(0, 4), (4, 4), (8, 3)]


def test_a_parameter_of_two_blocks_is_found() -> None:
    model = decoder("mlp", blocks=[{"kind": "pre", "layers": ["mlp"]}, {"kind": "pre", "layers": ["mlp"]}])
    assert not _shared(model)
    first, second = (model.get_submodule(f"stack.layers.{index}.layers.0") for index in range(2))
    second.register_module("up", first.get_submodule("up"))
    assert _shared(model) == {id(parameter) for parameter in first.get_submodule("up").parameters()}


def test_stored_boxes_that_are_missing_or_do_not_fit_are_listed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "one", decoder("mlp"), None)
    stored = StoredTensors(tmp_path / "one")
    name = f"{MODEL}embedding.tokens.weight"
    assert stored.kind(name) == (torch.float32, (11, 12))
    with pytest.raises(CheckpointError, match=r"model.other: missing, shape \[3\].*\n.*shape \[11, 12\] where the run "
                                              r"has \[12, 11\]"):
        stored.fill({"model.other": Boxes.of(torch.zeros(3)), name: Boxes.of(torch.zeros(12, 11))})
