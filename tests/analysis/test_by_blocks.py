"""Deep models are planned by shallow ones, exactly; absurd ones are refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from weft import api
from weft.analysis.by_blocks import shallow_models
from weft.analysis.cost_plan import Plan, _whole, plan
from weft.core.errors import ConfigError
from weft.core.model import ModelConfig, parse_model
from weft.core.part_config import Dims
from weft.families.family import families
from weft.masks.expression import parse_mask
from weft.positions.rope import RopeConfig

PRE = {"kind": "pre", "norm": "rmsnorm"}
ATTENTION = {**PRE, "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"}, {"kind": "mlp", "d_ff": 12}]}
WINDOWED = {**PRE, "layers": [{"kind": "attention", "n_heads": 2, "mask": "causal & window(3)", "position": "alibi"}]}
STATE = {**PRE, "layers": ["mamba", {"kind": "moe", "expert": {"kind": "glu", "d_ff": 6}, "n_experts": 4, "top_k": 1}]}


def model(*blocks: Any, **fields: Any) -> ModelConfig:
    return parse_model({"kind": "decoder", "vocab_size": 29, "context": 32, "d_model": 8, "blocks": list(blocks),
                        **fields})


def rounded(found: Plan) -> dict[str, Any]:
    """Without the order of parts, and the last digits of sums, which the order of adding changes."""
    def each(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: each(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [each(item) for item in value]
        return float(f"{value:.9g}") if isinstance(value, float) else value

    data: dict[str, Any] = each(found.to_json())
    numbers = {**data["parameters"], **{key: sorted(map(str, data["parameters"][key])) for key in ("parts", "groups")}}
    flops = {**data["flops"], "parts": sorted(map(str, data["flops"]["parts"]))}
    return {**data, "forms": sorted(map(str, data["forms"])), "parameters": numbers, "flops": flops}


@pytest.mark.parametrize("source", [
    model({"repeat": 8, "of": [ATTENTION]}),
    model(WINDOWED, {"repeat": 3, "of": [ATTENTION, WINDOWED]}, STATE, {"repeat": 2, "of": [STATE, ATTENTION]}),
    model({"repeat": 7, "of": [STATE]}, readout={"kind": "linear", "tied": False})], ids=["equal", "mixed", "experts"])
def test_the_plan_of_a_deep_model_is_that_of_running_it_whole(source: ModelConfig) -> None:
    assert shallow_models(source) is not None
    quick = plan(source, batch=2, context=8, contexts=(4, 8))
    slow, _ = _whole(source, 8, (4, 8), 2, None, None, {})
    assert rounded(quick) == rounded(slow)


def test_the_weights_of_shallow_models_add_up() -> None:
    """Every block is counted as often as the model has it, and what is outside of them once."""
    found = shallow_models(model(WINDOWED, {"repeat": 7, "of": [ATTENTION, WINDOWED]}))
    assert found is not None and sum(each.weight for each in found) == 1
    assert shallow_models(model({"repeat": 3, "of": [ATTENTION]})) is None
    assert shallow_models(model({"repeat": 9, "of": [ATTENTION]}, rewrites=[{"kind": "lora"}])) is None
    assert shallow_models(model({"repeat": 9, "of": [ATTENTION]}).build()) is None


def test_blocks_that_take_what_others_give_are_run_whole() -> None:
    giver, taker = ({"kind": "rwkv7", "n_heads": 2, "value_residual": flag} for flag in (False, True))
    first, later = ({**PRE, "layers": [each]} for each in (giver, taker))
    source = model(first, {"repeat": 7, "of": [later]})
    slow, _ = _whole(source, 8, (4, 8), 1, None, None, {})
    assert rounded(plan(source, context=8, contexts=(4, 8))) == rounded(slow)


@pytest.mark.parametrize("mask", ["causal", "causal & window(3)", "causal & window(40)", "bidirectional"])
@pytest.mark.parametrize("steps", [1, 2, 3, 17])
def test_the_share_of_visible_pairs_by_arithmetic(mask: str, steps: int) -> None:
    found = parse_mask(mask)
    assert found.share(steps) == pytest.approx(float(found.dense(steps).double().mean()))


@pytest.mark.parametrize(("changes", "message"), [
    (["model.d_model=100000000"], "25,000,000 rotary features of a head. Give at most 65,536"),
    (["model.blocks.0.repeat=100000"], "100,000"),
    (["model.blocks.0.repeat=1000000000"], "1,000,000,000")])
def test_absurd_sizes_are_refused_before_anything_is_built(changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        api.plan("transformer", changes)


def test_the_most_rotary_features_of_a_head() -> None:
    dims = Dims(d_model=8)
    assert RopeConfig().build_for_heads(dims, 1, 2**16) is not None
    with pytest.raises(ConfigError, match="65,538 rotary features of a head"):
        RopeConfig().build_for_heads(dims, 1, 2**16 + 2)


def test_ten_thousand_layers_are_planned() -> None:
    found = api.plan("transformer", ["model.blocks.0.repeat=10000", "model.vocab_size=64"], context=16)
    one = api.plan("transformer", ["model.blocks.0.repeat=1", "model.vocab_size=64"], context=16)
    two = api.plan("transformer", ["model.blocks.0.repeat=2", "model.vocab_size=64"], context=16)
    assert found.parameters.total - one.parameters.total == 9_999 * (two.parameters.total - one.parameters.total)
    assert found.step is not None and one.step is not None and two.step is not None
    assert found.step.flops - one.step.flops == 9_999 * (two.step.flops - one.step.flops)


def test_a_model_whose_operations_depend_on_its_length_is_run_whole() -> None:
    source = families()["llama"].config(families()["llama"].sizes[0])
    assert not plan(source, context=8, contexts=(4,)).lengthwise
    dynamic = {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 2.0, "original_length": 8}}
    block = {**PRE, "layers": [{"kind": "attention", "n_heads": 2, "position": dynamic}]}
    found = plan(model({"repeat": 8, "of": [block]}), context=16, contexts=(4,))
    assert found.lengthwise
    assert found == _whole(model({"repeat": 8, "of": [block]}), 16, (4,), 1, None, None, {})[0]
