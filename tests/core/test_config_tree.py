"""The configuration tree: parts by kind, mapping or instance; every problem at once, with its place and the remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from weft.api.configs import read_run
from weft.blocks.base import BlockConfig
from weft.blocks.residual import PreNormConfig
from weft.core.config import PartField, SharedParts, parse, parse_part
from weft.core.errors import ConfigError
from weft.core.part_config import Dims, ModuleConfig, PartConfig, Repeat, Settings, expand
from weft.core.registry import REGISTRY
from weft.feedforward.mlp import MLPConfig
from weft.mixers.attention import AttentionConfig
from weft.models.decoder import DecoderConfig
from weft.positions.rope import RopeConfig

MLP = {"kind": "mlp", "d_ff": 12}
BLOCK = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}, MLP]}
MODEL = {"vocab_size": 11, "d_model": 8, "blocks": [BLOCK]}


class Inner(Settings):
    """Plain settings inside a list and behind an option."""

    d_model: int = 1


class Outer(Settings):
    """Parts at every sort of place."""

    one: Annotated[PartConfig, PartField("position")] = RopeConfig()
    listed: tuple[Inner, ...] = ()
    optional: Inner | None = None
    named: dict[str, Inner] = Field(default_factory=dict)
    parts: tuple[Annotated[PartConfig, PartField("mixer", "feedforward")], ...] = ()


def problems(model: type[Settings], data: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(model, data)
    return caught.value.problems


def examples() -> Iterator[Any]:
    for part in REGISTRY.parts():
        for index, config in enumerate(part.examples()):
            yield pytest.param(config, id=f"{part.group}.{part.kind}.{index}")


@pytest.mark.parametrize("value", ["rope", {"kind": "rope"}, RopeConfig()])
def test_a_part_is_given_by_kind_mapping_or_instance(value: Any) -> None:
    assert parse(Outer, {"one": value}).one == RopeConfig()


def test_a_part_keeps_its_own_fields_in_a_field_of_its_base_type() -> None:
    one = parse(Outer, {"one": {"kind": "rope", "base": 500.0, "rot": 2}}).one
    assert one == RopeConfig(base=500.0, rot=2)
    assert Outer(one=one).model_dump(mode="json")["one"] == {
        "kind": "rope", "layout": "interleaved", "base": 500.0, "rot": 2, "scaling": {"kind": "none"}}


@pytest.mark.parametrize("config", list(examples()))
def test_every_example_comes_back_from_its_text(config: PartConfig) -> None:
    text = json.dumps(config.dump())
    again = parse_part((config.group,), json.loads(text))
    assert again == config
    assert type(again) is type(config)
    assert json.dumps(again.dump()) == text


def test_nested_parts_come_back_with_repeats_and_references() -> None:
    shared = {"kind": "pre", "layers": [{"shared": "ff"}]}
    data = {**MODEL, "shared": {"ff": MLP}, "blocks": [{"repeat": 2, "of": [BLOCK, {"repeat": 3, "of": [shared]}]}]}
    config = parse(DecoderConfig, data)
    dumped = config.dump()
    assert parse_part(("model",), json.loads(json.dumps(dumped))) == config
    assert dumped["blocks"][0]["of"][1]["of"][0]["layers"] == [{"shared": "ff"}]
    assert isinstance(config.blocks[0], Repeat)


@pytest.mark.parametrize(("value", "message"), [
    ("rop", r"^one.kind: no position of kind 'rop'. Did you mean 'rope'\?$"),
    ({"kind": "zzzz"}, r"^one.kind: no position of kind 'zzzz'. Known names: alibi, .*rope"),
    ({"base": 3}, r"^one.kind: missing: say which position this is. Known kinds: alibi, .*rope"),
    ({"kind": 3}, r"^one.kind: missing: say which position this is"),
    (3, r"^one: 3 is not a position. Give a kind or a mapping with one. Known kinds: alibi, "),
    (MLPConfig(d_ff=3), r"^one: 'mlp' is a feedforward, not a position. Known kinds: alibi, "),
    ({"kind": "rope", "bas": 3}, r"^one.bas: unknown key 'bas'. Did you mean 'base'\?$"),
    ({"kind": "rope", "scaling": {"kind": "non"}}, r"^one.scaling.kind: no rope_scaling of kind 'non'. Did you mean '"),
    ({"kind": "rope", "base": 0.5}, r"^one.base: Input should be greater than 1, got 0.5.$"),
    ({"kind": "rope", "rot": 0}, r"^one.rot: Input should be greater than 0, got 0.$"),
    ({"shared": "a", "of": 3}, r"^one.of: unknown key 'of'. A reference holds `shared` alone.$"),
    (None, r"^one: None is not a position."),
])
def test_what_is_wrong_with_a_part_is_said_where_it_stands(value: Any, message: str) -> None:
    (problem,) = problems(Outer, {"one": value})
    assert re.search(message, problem), problem


def test_a_misspelt_key_names_the_nearest_of_the_model_it_stands_in() -> None:
    wrong = {"d_modle": 3}
    assert problems(Outer, {"listed": [{}, wrong], "optional": wrong, "named": {"x": wrong}, "onee": 1}) == (
        "listed.1.d_modle: unknown key 'd_modle'. Did you mean 'd_model'?",
        "optional.d_modle: unknown key 'd_modle'. Did you mean 'd_model'?",
        "named.x.d_modle: unknown key 'd_modle'. Did you mean 'd_model'?",
        "onee: unknown key 'onee'. Did you mean 'one'?")


def test_every_problem_is_told_at_once_with_its_full_path() -> None:
    attention = {"kind": "attention", "n_head": 2, "scores": {"softcp": 1.0}, "qk_norm": {"kind": "rmsnrm"},
                 "mask": "causl"}
    blocks = [{"repeat": 2, "of": [BLOCK, {"kind": "pre", "layers": [MLP, attention], "dropout": 2}]}, "poste"]
    assert problems(DecoderConfig, {"vocab_size": 0, "blocks": blocks, "embedding": {"scal": 1}}) == (
        "vocab_size: Input should be greater than 0, got 0.",
        "d_model: missing. Give a value.",
        "embedding.scal: unknown key 'scal'. Did you mean 'scale'?",
        "blocks.0.of.1.layers.1.mask: no mask is called 'causl'. Did you mean 'causal'?",
        "blocks.0.of.1.layers.1.qk_norm.kind: no norm of kind 'rmsnrm'. Did you mean 'rmsnorm'?",
        "blocks.0.of.1.layers.1.scores.softcp: unknown key 'softcp'. Did you mean 'softcap'?",
        "blocks.0.of.1.layers.1.n_head: unknown key 'n_head'. Did you mean 'n_heads'?",
        "blocks.0.of.1.dropout: Input should be less than 1, got 2.",
        "blocks.1.kind: no block of kind 'poste'. Did you mean 'post'?")


@pytest.mark.parametrize(("blocks", "message"), [
    ([{"repeat": 0, "of": [BLOCK]}], "blocks.0.repeat: 0 is not a positive number of times."),
    ([{"repeat": True, "of": [BLOCK]}], "blocks.0.repeat: True is not a positive number of times."),
    ([{"repeat": 2, "of": []}], "blocks.0.of: a repeat needs a list of blocks. Write {repeat: 6, of: [...]}."),
    ([{"repeat": 2}], "blocks.0.of: a repeat needs a list of blocks. Write {repeat: 6, of: [...]}."),
    ([{"repeat": 2, "of": [BLOCK], "off": 1}], "blocks.0.off: unknown key 'off'. Did you mean 'of'?"),
    ([{"repeat": 2, "of": [{"repeat": "x", "of": [BLOCK]}]}],
     "blocks.0.of.0.repeat: 'x' is not a positive number of times."),
    ([{"repeat": 2, "of": [3]}], "blocks.0.of.0: 3 is not a block. Give a kind or a mapping with one. Known kinds: "
     + ", ".join(REGISTRY.kinds(("block",))) + "."),
    ([], "blocks: a model without blocks does nothing. List at least one block."),
    ([{"kind": "pre", "layers": []}],
     "blocks.0.layers: a block without layers does nothing. List at least one mixer or feed-forward."),
    ([{"shared": "x"}], "blocks.0: no block can be shared, got a reference to 'x'. Write it out here."),
])
def test_repeats_and_lists_of_blocks_are_checked(blocks: Any, message: str) -> None:
    assert problems(DecoderConfig, {**MODEL, "blocks": blocks}) == (message,)


def test_a_repeat_stands_only_where_blocks_are_listed() -> None:
    (problem,) = problems(Outer, {"parts": [{"repeat": 2, "of": [MLP]}]})
    assert problem.startswith("parts.0.kind: missing: say which mixer or feedforward this is.")


def test_repeats_are_written_out_in_order_with_their_places() -> None:
    data = [{"repeat": 2, "of": ["a", {"repeat": 2, "of": ["b"]}]}, "c"]
    parts = {name: PreNormConfig(layers=[MLPConfig(d_ff=n)]) for n, name in enumerate("abc", start=1)}

    def filled(item: Any) -> Any:
        return parts[item] if isinstance(item, str) else {**item, "of": [filled(inner) for inner in item["of"]]}

    config = parse(DecoderConfig, {**MODEL, "blocks": [filled(item) for item in data]})
    found = [(place, part.layers[0].d_ff) for place, part in expand(config.blocks)]
    b = [((0, "of", 1, "of", 0), 2)] * 2
    assert found == [((0, "of", 0), 1), *b, ((0, "of", 0), 1), *b, ((1,), 3)]


def test_repeated_blocks_have_weights_of_their_own_and_shared_parts_have_not() -> None:
    block = {"kind": "pre", "layers": [{"shared": "ff"}, MLP]}
    model = parse(DecoderConfig, {**MODEL, "shared": {"ff": MLP}, "blocks": [{"repeat": 2, "of": [block]}]}).build()
    first, second = (module.layers for module in model.stack.layers)
    assert first[0] is second[0] is model.shared["ff"]
    assert first[1] is not second[1]


@pytest.mark.parametrize(("fields", "message"), [
    ({"blocks": [{"kind": "pre", "layers": [{"shared": "token"}]}]},
     "blocks.0.layers.0.shared: no shared part is called 'token'. Known names: ff."),
    ({"blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": {"shared": "ff"}}]}]},
     "blocks.0.layers.0.position.shared: 'ff' is a feedforward, not a position. Share a part that fits here, or write "
     "one out."),
    ({"shared": {"ff": MLP, "unused": MLP}, "blocks": [{"kind": "pre", "layers": [{"shared": "ff"}]}]},
     "shared.unused: nothing uses it. Name it where it belongs, as {shared: unused}, or remove it."),
    ({"shared": {"turn": "rope"}, "blocks": [{"kind": "pre", "layers": [
        {"kind": "attention", "n_heads": heads, "position": {"shared": "turn"}} for heads in (2, 4)]}]},
     "blocks.0.layers.1.position.shared: 'turn' was built for 2 heads of size 4, here it is used for 4 heads of size "
     "2. Share it only between places of the same sizes."),

    ({"readout": {"shared": "x"}}, "readout: no readout can be shared, got a reference to 'x'. Write it out here."),
    ({"shared": {"a.b": MLP}}, "shared: 'a.b' cannot name a part. Choose another word, such as 'table'."),
    ({"shared": {"keys": MLP}}, "shared: 'keys' cannot name a part. Choose another word, such as 'table'."),
    ({"shared": {"ff": {"kind": "attention", "n_heads": 3}}, "blocks": [{"kind": "pre", "layers": [{"shared": "ff"}]}]},
     "shared.ff.n_heads: d_model 8 does not divide into 3 heads. Choose another number of heads, or give d_head."),
])
def test_references_that_cannot_be_followed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(DecoderConfig, {**MODEL, "shared": {"ff": MLP}, **fields}).build()
    assert caught.value.problems == (message,)


def test_problems_of_building_are_gathered_and_a_repeated_one_is_told_once() -> None:
    bad = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 3}, {"shared": "x"}]}
    with pytest.raises(ConfigError) as caught:
        parse(DecoderConfig, {**MODEL, "blocks": [{"repeat": 2, "of": [bad]}, bad]}).build()
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "blocks.0.of.0.layers.0.n_heads", "blocks.0.of.0.layers.1.shared",
        "blocks.1.layers.0.n_heads", "blocks.1.layers.1.shared"]


def test_errors_say_which_file_and_what_the_whole_is_when_it_is_no_mapping() -> None:
    with pytest.raises(ConfigError, match=r"^run.yaml: 1 problem in the configuration:\n  - configuration: Input shou"):
        parse(DecoderConfig, [1], where="run.yaml")
    with pytest.raises(ConfigError, match=r"^x: 1 problem.*\n  - mixer: 3 is not a mixer"):
        parse_part(("mixer",), 3, where="x")
    with pytest.raises(ConfigError, match=r"n_head: unknown key 'n_head'. Did you mean 'n_heads'\?"):
        parse_part(("mixer",), {"kind": "attention", "n_head": 3})


def test_dims_know_their_place() -> None:
    dims = Dims(8).at("blocks", 0).at("layers")
    assert dims.path == "blocks.0.layers"
    assert dims.problem("d_ff", "3 is odd.", "Give 4.").problems == ("blocks.0.layers.d_ff: 3 is odd. Give 4.",)
    assert Dims(8).problem("d_ff", "3 is odd.", "Give 4.").problems == ("d_ff: 3 is odd. Give 4.",)
    assert dims.problem("", "is odd.", "Give 4.").problems == ("blocks.0.layers: is odd. Give 4.",)


def test_parts_that_do_not_say_how_they_are_built() -> None:
    with pytest.raises(NotImplementedError, match="ModuleConfig does not say how it is built"):
        ModuleConfig().build(Dims(8))
    with pytest.raises(NotImplementedError, match="BlockConfig does not say how it is built"):
        BlockConfig(layers=[MLPConfig()]).build(Dims(8))


def test_a_shared_part_is_the_one_that_was_built() -> None:
    parts = SharedParts({"x": parse_part(("mixer",), "gru")})
    first, second = (parse_part(("mixer",), {"shared": "x"}).build(Dims(8, shared=parts)) for _ in range(2))
    assert first is second is parts["x"]


def test_a_position_scheme_can_be_shared_by_attentions() -> None:
    attention = {"kind": "attention", "n_heads": 2, "position": {"shared": "turn"}}
    block = {"kind": "pre", "layers": [attention, attention]}
    model = parse(DecoderConfig, {**MODEL, "shared": {"turn": "rope"}, "blocks": [block]}).build()
    first, second = model.stack.layers[0].layers
    assert first.position is second.position is model.shared["turn"]


def test_configurations_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        AttentionConfig().n_heads = 3  # type: ignore[misc]


def test_a_changed_configuration_is_the_one_that_was_written_so() -> None:
    """Fields that were not given stay so, parts stay objects, and values are validated as when they are written."""
    run = read_run("transformer")
    changed = run.with_(seed=3, training={"steps": 7, "seconds": None}, model={"d_model": 144})
    assert changed.dump() == read_run(
        "transformer", ["seed=3", "training.steps=7", "training.seconds=null", "model.d_model=144"]).dump()
    assert changed.training.model_fields_set == run.training.model_fields_set | {"steps"}
    assert changed.model.model_fields_set == run.model.model_fields_set
    assert run.with_() == run and read_run("transformer") == run
    block = PreNormConfig(layers=["mlp"])
    assert run.with_(model={"blocks": [block]}).model.dump()["blocks"] == [block.dump()]
    for wrong in ({"sed": 3}, {"seed": -1}, {"training": {"stps": 7}}, {"model": {"d_model": 0}}):
        with pytest.raises(ValidationError):
            run.with_(**wrong)
