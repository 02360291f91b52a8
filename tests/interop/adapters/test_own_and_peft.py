"""Adapters saved apart: put on the model under them they are the whole model, and on another they are refused. What
`peft` itself reads and writes is compared in tests/against_peft; here are files in its format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import weft
from linear.small import TOKENS, model
from training.tiny_runs import tiny_run
from weft.checkpoints import Loaded, save_checkpoint
from weft.core.config import parse_part
from weft.core.errors import CheckpointError, ConfigError, FailedError, InputError, UnsupportedError
from weft.interop.adapters.opening import merged_within_bounds
from weft.linear.low_rank import Adapted, LowRankParts
from weft.linear.rewrite import rewritten
from weft.training import train

LAYERS = ({"kind": "attention", "n_heads": 2, "position": "rope"}, {"kind": "glu", "d_ff": 12})
LORA = {"kind": "lora", "rank": 2, "alpha": 3.0}


@dataclass(frozen=True)
class Case:
    """A model, the same with adapters, and another of the same sizes: their folders."""

    base: Path
    whole: Path
    other: Path


def make(folder: Path, rewrites: list[Any], under: tuple[Any, ...] = ()) -> Case:
    paths = [folder / name for name in ("base", "whole", "other")]
    for path, seed in ((paths[0], 0), (paths[2], 1)):
        save_checkpoint(path, model([], LAYERS, seed=seed, readout={"kind": "linear", "tied": False}).float(), None)
    found = weft.load(paths[0])
    every = [parse_part(("rewrite",), each) for each in [*under, *rewrites]]
    whole = rewritten(found.model, every)
    whole.config = found.config.model_copy(update={"rewrites": every})
    for each in whole.modules():
        if isinstance(each, Adapted):
            each.perturb(torch.Generator().manual_seed(3))
    for name, p in whole.named_parameters():
        if p.requires_grad and "norm" in name:
            p.data.mul_(1.5)
    save_checkpoint(paths[1], whole.eval(), None)
    return Case(*paths)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make(tmp_path_factory.mktemp("adapters"), [{**LORA, "maps": ["qkv.q", "v", "down", "readout"], "dora": True,
                                                       "ranks": {"v": 1}, "alphas": {"down": 2.0}}])


def logits(source: Any, **options: Any) -> torch.Tensor:
    found = source if isinstance(source, Loaded) else weft.load(source, **options)
    with torch.no_grad():
        y: torch.Tensor = found.model(TOKENS).y
    return y


@pytest.mark.parametrize("to", ["adapter", "peft"])
def test_an_adapter_alone_on_its_model_is_the_whole(case: Case, to: str, tmp_path: Path) -> None:
    found = weft.convert(case.whole, tmp_path / "a", to=to, base=str(case.base))
    assert found.difference < 1e-6 and found.merged is None
    loaded = weft.load(tmp_path / "a")
    assert_close(logits(loaded), logits(case.whole), rtol=1e-6, atol=1e-6)
    assert isinstance(loaded.model.get_submodule("stack.layers.0.layers.0.qkv"), LowRankParts)
    sizes = [path.stat().st_size for path in (tmp_path / "a").glob("*.safetensors")]
    assert sum(sizes) < 0.8 * (case.whole / "model.safetensors").stat().st_size
    trained = {name for name, p in loaded.model.named_parameters() if p.requires_grad}
    assert trained == {name for name, p in weft.load(case.whole).model.named_parameters() if p.requires_grad}
    merged = weft.convert(tmp_path / "a", tmp_path / "m", to="weft")
    assert merged.merged is not None and merged.merged_bound is not None and merged.merged < 1e-5 < merged.merged_bound
    assert weft.load(tmp_path / "m").config.rewrites == []
    assert_close(logits(tmp_path / "m"), logits(case.whole), rtol=1e-5, atol=1e-5)
    narrow = weft.load(tmp_path / "a", dtype="bfloat16").model
    assert {p.dtype for p in narrow.parameters()} == {torch.bfloat16}


def test_one_of_quantised_matrices_and_further_parameters(tmp_path: Path) -> None:
    case = make(tmp_path, [{**LORA, "also_train": ["norm.*"]}], under=("int8",))
    weft.convert(case.whole, tmp_path / "a", to="adapter", base=str(case.base))
    assert_close(logits(tmp_path / "a"), logits(case.whole), rtol=1e-6, atol=1e-6)
    assert {name.rsplit(".", 2)[-2] for name in load_file(tmp_path / "a/adapter.safetensors")} == {"a", "b", "norm"}
    with pytest.raises(UnsupportedError, match=r"the format of `peft` cannot hold rewrites of other kinds than lora"):
        weft.convert(case.whole, tmp_path / "p", to="peft", base=str(case.base))


@pytest.mark.parametrize("to", ["adapter", "peft"])
def test_another_model_is_refused(case: Case, to: str, tmp_path: Path) -> None:
    weft.convert(case.whole, tmp_path / "a", to=to, base=str(case.base))
    with pytest.raises(CheckpointError, match=r"trained on other weights than those of .*other. Give the model that "
                                              r"the adapter was trained on \(--base of weft convert"):
        weft.load(tmp_path / "a", base=str(case.other))
    with pytest.raises(CheckpointError, match=r"the model that it adapts is not at 'nowhere'"):
        weft.load(tmp_path / "a", base="nowhere")
    with pytest.raises(CheckpointError, match=r"trained on other weights"):
        weft.convert(case.whole, tmp_path / "b", to=to, base=str(case.other))
    assert not (tmp_path / "b").exists()
    small = save_checkpoint(tmp_path / "small", model([], (LAYERS[0], {"kind": "glu", "d_ff": 10}), readout={
        "kind": "linear", "tied": False}).float(), None)
    with pytest.raises(CheckpointError, match=r"trained on other weights|do not fit this model"):
        weft.load(tmp_path / "a", base=str(small))


def test_a_run_names_the_model_it_started_from_and_another_goes_on_from_the_adapter(case: Case, tmp_path: Path) -> None:
    base = save_checkpoint(tmp_path / "base", model([], LAYERS, vocab_size=300).float(), None)
    config = tiny_run(tmp_path, {**model([{**LORA}], LAYERS, vocab_size=300).config.dump()}, steps=2)
    result = train(config.model_copy(update={"start": str(base)}), tmp_path / "run")
    found = weft.convert(tmp_path / "run", tmp_path / "a", to="adapter")
    assert found.difference == 0
    assert json.loads((tmp_path / "a/weft_adapter.json").read_text())["base"] == str(base.resolve())
    again = train(config.model_copy(update={"start": str(tmp_path / "a")}), tmp_path / "again")
    assert any(not torch.equal(p, result.model.get_parameter(name)) for name, p in again.model.named_parameters())


def test_what_cannot_be_saved_apart_is_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"adapter: this model has no adapters to save apart. Train it with a"):
        weft.convert(case.base, tmp_path / "a", to="adapter", base=str(case.base))
    with pytest.raises(InputError, match=r"base: nothing says on which model the adapter is to be put"):
        weft.convert(case.whole, tmp_path / "a", to="adapter")
    extra = make(tmp_path / "extra", [{**LORA, "also_train": ["norm.*"]}])
    with pytest.raises(UnsupportedError, match=r"cannot hold parameters that were trained besides the adapters"):
        weft.convert(extra.whole, tmp_path / "a", to="peft", base=str(extra.base))


def test_merging_that_changes_logits_is_refused(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = weft.load(case.whole).model
    monkeypatch.setattr("weft.interop.adapters.opening.merged", lambda found: model([], LAYERS, readout={
        "kind": "linear", "tied": False}).float())
    with pytest.raises(FailedError, match=r"the model with its rewrites merged gives logits that differ by up to"):
        merged_within_bounds(whole)


def changed(case: Case, tmp_path: Path, keys: Mapping[str, Any], tensors: Any = None) -> Path:
    """An adapter in the format of `peft`, with some keys and tensors changed."""
    folder = tmp_path / "changed"
    if not folder.exists():
        weft.convert(case.whole, folder, to="peft", base=str(case.base))
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
    if tensors is not None:
        save_file(tensors(load_file(folder / "adapter_model.safetensors")), folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(("keys", "message"), [
    ({"bias": "all"}, r"bias: 'all', but only 'none' can be read. Biases under the adapter were trained"),
    ({"modules_to_save": ["lm_head"]}, r"modules_to_save: \['lm_head'\], .* It changes what is computed: merge the ad"),
    ({"peft_type": "IA3"}, r"peft_type: 'IA3', but only 'LORA' can be read."),
    ({"init_lora_weights": "pissa"}, r"init_lora_weights: 'pissa' changes the weights under the adapter."),
    ({"target_parameters": ["experts"]}, r"target_parameters: \['experts'\], but only"),
    ({"use_new_thing": True}, r"use_new_thing: unknown key."), ({"r": "four"}, r"r: 'four' is not a whole number."),
    ({"rank_pattern": 53402242713933}, r"rank_pattern: 53402242713933 is no"),
    ({"rank_pattern": {"(a+)+": 2}}, r"rank_pattern: '\(a\+\)\+' repeats a group, or has more than 4 repetitions"),
    ({"alpha_pattern": {".*.*.*.*.*q": 2}}, r"alpha_pattern: .* repeats a group, or has more than 4 repetitions"),
    ({"alpha_pattern": {"a{99999999999}": 2}}, r"alpha_pattern: 'a\{9+\}' is no regular expression"),
    ({"rank_pattern": {"q": "2"}}, r"rank_pattern: 'q': '2' is no rank from 1 to 65,536"),
    ({"alpha_pattern": {"q": None}}, r"alpha_pattern: 'q': None is no alpha from 1e-06 to 1e\+06"),
    ({"r": 0}, r"r: 0 is no rank from 1 to 65,536"), ({"lora_alpha": -1}, r"lora_alpha: -1.* is no alpha from"),
    ({"lora_alpha": float("nan")}, r"lora_alpha: nan"), ({"lora_dropout": 2**31}, r"lora_dropout: 2147483648"),
    ({"lora_dropout": 1.0}, r"lora_dropout: 1.0 is no probability below 1"),
    ({"base_model_name_or_path": 7}, r"base_model_name_or_path: 7 is no text"),
    ({"r": 7}, r"A has 2 rows, and the file of settings has the rank 7"),
    ({"rank_pattern": {"(": 2}}, r"rank_pattern: '\(' is no regular expression"),
    ({"use_dora": False}, r"of lora_A, lora_B and lora_magnitude_vector not all that it needs, or more."),
    ({"layer_replication": [[0, 1]], "lora_bias": True}, r"layer_replication: .*\n.*lora_bias: True")])
def test_keys_that_cannot_be_carried_are_refused_by_name(case: Case, keys: dict[str, Any], message: str,
                                                         tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"(?s){message}"):
        weft.load(changed(case, tmp_path, keys))


@pytest.mark.parametrize(("keys", "same"), [
    ({"lora_alpha": 30.0}, False), ({"use_rslora": True}, False), ({"lora_dropout": 0.3}, True),
    ({"exclude_modules": ["x"], "revision": "main", "task_type": None}, True)])
def test_keys_that_are_carried_have_their_effect(case: Case, keys: dict[str, Any], same: bool, tmp_path: Path) -> None:
    assert torch.allclose(logits(changed(case, tmp_path, keys)), logits(case.whole), atol=1e-5) is same


def test_tensors_that_do_not_fit_are_listed(case: Case, tmp_path: Path) -> None:
    prefix = "base_model.model.model.layers.0."

    def other(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        q = tensors.pop(f"{prefix}self_attn.q_proj.lora_A.weight")
        down = tensors.pop(f"{prefix}mlp.down_proj.lora_B.weight")
        return {**tensors, f"{prefix}self_attn.qq.lora_A.weight": q, f"{prefix}mlp.down_proj.lora_B.weight": down[1:],
                "base_model.model.lm_head.weight": q.clone()}

    with pytest.raises(CheckpointError) as error:
        weft.load(changed(case, tmp_path, {}, other))
    for line in (r"base_model.model.lm_head.weight: not a matrix of low rank beside a linear map",
                 r"layers.0.self_attn.q_proj: of lora_A, lora_B and lora_magnitude_vector not all",
                 r"down_proj: B [7, 2] A [2, 12] beside a map of 8 outputs and 12 inputs."):
        assert line in str(error.value)
    (tmp_path / "changed/adapter_model.safetensors").write_bytes(b"PK\x03\x04 a pickle")
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors: the tensors cannot be read"):
        weft.load(tmp_path / "changed")


def test_a_damaged_or_newer_file_says_so(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    weft.convert(case.whole, folder, to="adapter", base=str(case.base))
    content = (folder / "weft_adapter.json").read_text()
    (folder / "weft_adapter.json").write_text(content.replace('"base"', '"bass"'))
    with pytest.raises(CheckpointError, match=r"weft_adapter.json"):
        weft.load(folder)


def test_a_rank_above_the_matrix_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"rank: above the size"):
        model([{**LORA, "rank": 9, "maps": ["*"]}], LAYERS)
