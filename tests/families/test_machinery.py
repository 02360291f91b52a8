"""The machinery: templates, keys, steps and accounts work in both directions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from weft.core.base_model import built_empty
from weft.core.errors import CheckpointError, ConfigError
from weft.core.model import parse_model
from weft.families.canonical import canonical_data
from weft.families.configurations import read_keys, write_keys
from weft.families.family import Size, families, family_of
from weft.families.keys import Fixed, Ignored, Kept, KeyRule, Read, words
from weft.families.template import Fact, Layers, TemplateChoice, build_config, fill, match
from weft.families.tensor_steps import TRANSPOSE, UNSTACK, Step, fuse, gates_apart, rotary_order, split, ungroup
from weft.families.weights import Rule, account, rename
from weft.interop.formats import agrees, published

TEMPLATE = {"kind": "decoder", "vocab_size": Fact("v"), "d_model": 8,
            "blocks": Layers(TemplateChoice("order", {
                order: {"kind": kind, "layers": [{"kind": "mlp", "d_ff": Fact("f", each=True)}]}
                for order, kind in (("before", "pre"), ("after", "post"))}, each=True))}
RECURRENT = {"kind": "decoder", "vocab_size": Fact("v"), "d_model": 8,
             "blocks": Layers({"kind": "pre", "layers": [{"kind": "lstm"}]})}


def numbers(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


@pytest.mark.parametrize(("step", "tensors"), [
    (TRANSPOSE, [numbers(3, 4), numbers(2, 5)]), (fuse((2, 3, 1)), [numbers(2, 4), numbers(3, 4), numbers(1, 4)]),
    (split((2, 3)), [numbers(5, 2), numbers(5, 3)]), (ungroup(3, (2, 1, 1)), [numbers(12, 2)]),
    (ungroup(2, (3, 3)), [numbers(12)]),
    (rotary_order(3, 6, 4), [numbers(25, 2)]), (rotary_order(1, 4, 4, reverse=True), [numbers(4)]),
    (gates_apart(2, 3, 4), [numbers(12, 2), numbers(4, 2), numbers(4, 2)]),
    (UNSTACK, [numbers(3, 2, 2)])], ids=["TRANSPOSE", "fuse", "split", "ungroup", "ungroup of two", "rotary_order",
                                         "reverse", "gates_apart", "UNSTACK"])
def test_every_step_is_undone_by_its_inverse(step: Step, tensors: list[Tensor]) -> None:
    there = step.read(tensors)
    back = step.write(there)
    assert len(back) == len(tensors)
    assert all(torch.equal(a, b) for a, b in zip(back, tensors, strict=True))
    flat = torch.cat([tensor.flatten() for tensor in there])
    assert sorted(flat.tolist()) == sorted(torch.cat([tensor.flatten() for tensor in tensors]).tolist())


def test_groups_become_parts() -> None:
    """Two heads of [q q k v] rows: all q, then k, then v."""
    assert ungroup(2, (2, 1, 1)).read([numbers(8)])[0].tolist() == [0, 1, 4, 5, 2, 6, 3, 7]


def test_pairs_are_moved_and_the_rest_stays() -> None:
    """Two heads of 5 features, 4 of them turned, and two rows of values."""
    assert rotary_order(2, 5, 4).read([numbers(12)])[0].tolist() == [0, 2, 1, 3, 4, 5, 7, 6, 8, 9, 10, 11]


def test_a_template_and_its_facts_give_each_other() -> None:
    facts = {"v": 11, "n_layers": 3, "order": ["before", "after", "before"], "f": [5, 6, 7]}
    config = build_config(TEMPLATE, facts)
    assert [block["kind"] for block in config.dump()["blocks"]] == ["pre", "post", "pre"]
    assert match(TEMPLATE, config) == (facts, [])


def test_equal_neighbours_are_written_as_a_repeat() -> None:
    assert fill(RECURRENT, {"v": 11, "n_layers": 3})["blocks"] == [
        {"repeat": 3, "of": [{"kind": "pre", "layers": [{"kind": "lstm"}]}]}]


def test_a_field_that_the_template_does_not_name_must_have_its_default() -> None:
    good = build_config(RECURRENT, {"v": 3, "n_layers": 2})
    assert match(RECURRENT, good)[1] == []
    other = good.model_copy(update={"context": 99})
    assert match(RECURRENT, other)[1] == ["context: 99 where the family has 256."]


def test_what_changes_no_output_need_not_fit() -> None:
    blocks = Layers({"kind": "pre", "layers": ["lstm"], "dropout": 0.5})
    dropped = build_config({**RECURRENT, "blocks": blocks}, {"v": 3, "n_layers": 1})
    assert match(RECURRENT, dropped)[1] == []


def test_a_model_of_another_shape_does_not_fit() -> None:
    wide = build_config({"kind": "decoder", "vocab_size": 3, "d_model": 8,
                         "blocks": [{"kind": "pre", "layers": ["lstm", "lstm"]}]}, {})
    template = {"kind": "decoder", "vocab_size": 3, "d_model": 8,
                "blocks": Layers({"kind": "pre", "layers": [{"kind": "mlp", "d_ff": Fact("f")}]})}
    assert match(template, wide)[1] == ["blocks.*.layers: a list of 2 where the family has a list of 1."]


def test_canonical_forms_are_equal_where_models_are() -> None:
    long = {"kind": "decoder", "vocab_size": 9, "d_model": 12, "embedding": {"scale": 1.0}, "blocks": [
        {"repeat": 2, "of": [{"kind": "pre", "layers": [
            {"kind": "attention", "n_heads": 3, "n_kv_heads": 3, "d_head": 4, "d_value": 4, "scores": {"scale": 0.5},
             "position": {"kind": "rope", "rot": 4}}, {"kind": "mlp", "d_ff": 48}, {"kind": "glu", "d_ff": 32}]}]}]}
    block = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 3, "position": "rope"}, "mlp", "glu"]}
    short = {"kind": "decoder", "vocab_size": 9, "d_model": 12, "blocks": [block, block]}
    assert canonical_data(long) == canonical_data(short)


def test_an_initial_size_that_follows_the_width_is_written_as_a_number() -> None:
    """The default of one's own configuration, of which files of other libraries know nothing."""
    block = {"kind": "pre", "norm": "rmsnorm", "layers": [{"kind": "attention", "position": "rope"}, "glu"]}
    config = parse_model({"kind": "decoder", "vocab_size": 9, "d_model": 16, "norm": "rmsnorm",
                          "readout": {"kind": "linear", "tied": False}, "blocks": [block]})
    written, _, misfits = families()["llama"].write(config, {})
    assert misfits == [] and written["initializer_range"] == 0.25


def test_published_models_begin_as_their_families_say_and_not_by_the_default() -> None:
    for family in families().values():
        for size in family.sizes[:1]:
            embedding = family.config(size).dump().get("embedding", {})
            assert isinstance(embedding.get("std", 0.0), float), family.name


RULES: tuple[KeyRule, ...] = (
    Read("size", "d", old=("width",)),
    Read("act", "f", str, "relu", codec=words({"relu": "r", "gelu": "g"}, also={"new": "g"})),
    Read("inner", "i", derive=lambda facts: 4 * facts["d"]), Fixed("mode", ("a", "b"), default="b", why="So it is."),
    Kept("eos"), Ignored(("junk",), "it is junk"))


@pytest.mark.parametrize(("raw", "facts"), [
    ({"size": 3}, {"d": 3, "f": "r", "i": 12}),
    ({"width": 3, "act": "new", "inner": None}, {"d": 3, "f": "g", "i": 12}),
    ({"size": 3, "inner": 5, "eos": 2, "junk": []}, {"d": 3, "f": "r", "i": 5, "kept": {"eos": 2}})])
def test_keys_are_read(raw: dict[str, Any], facts: dict[str, Any]) -> None:
    assert read_keys(RULES, raw) == (facts, [])


def test_every_problem_with_keys_is_noted() -> None:
    problems = read_keys(RULES, {"size": True, "act": "mish", "mode": "c", "jnk": 1})[1]
    assert problems == ["size: True is not a whole number.",
                        "act: 'mish' is not known here. Known names: gelu, new, relu.",
                        "mode: 'c', but only 'a' or 'b' can be read. So it is.",
                        "jnk: unknown key. Did you mean 'junk'?"]
    assert read_keys(RULES, {})[1] == ["size: missing."]


@pytest.mark.parametrize("classes", [7, True, "LlamaForCausalLM", {"LlamaForCausalLM": 1}, [7], [["LlamaForCausalLM"]]],
                         ids=str)
def test_classes_that_are_no_list_of_names(classes: object) -> None:
    raw = {"architectures": classes, "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
           "num_attention_heads": 1}
    family = family_of({"model_type": "llama", **raw}, "config.json")
    with pytest.raises(ConfigError, match="architectures: it is no list of names of classes") as caught:
        family.read(raw)
    assert len(caught.value.problems) == 1
    with pytest.raises(CheckpointError, match="the model has no model_type"):
        family_of(raw, "config.json")


def test_a_model_type_that_is_no_name() -> None:
    for kind in ([], ["llama"], {}, 7):
        with pytest.raises(CheckpointError, match="which is not known here"):
            family_of({"model_type": kind}, "config.json")


def test_keys_are_written() -> None:
    assert write_keys(RULES, {"d": 3, "f": "g", "i": 5, "kept": {"eos": 2}}) == (
        {"size": 3, "act": "gelu", "inner": 5, "mode": "a", "eos": 2}, [])
    assert write_keys(RULES, {"d": 3, "f": "x", "i": 5})[1] == ["act: cannot express 'x'; its values are 'r', 'g'."]


def test_every_ignored_key_has_a_reason() -> None:
    rules = [rule for family in families().values() if family.native is not None
             for rule in family.native.rules]
    assert all(len(rule.reason.split()) > 2 for rule in rules if isinstance(rule, Ignored))


def test_no_key_has_two_rules() -> None:
    for family in families().values():
        if family.native is not None:
            keys = [key for rule in family.native.rules for key in rule.keys]
            assert sorted(keys) == sorted(set(keys)), family.name


def test_an_account_covers_every_tensor_once() -> None:
    own = {"a.0.w": numbers(4, 3), "a.1.w": numbers(4, 3), "b": numbers(2)}
    rules = [Rule(("q.{layer}", "k.{layer}"), ("a.{layer}.w",), (fuse((3, 1)),)), rename("b", "b")]
    assert account(rules, own).shapes == {"q.0": (3, 3), "k.0": (1, 3), "q.1": (3, 3), "k.1": (1, 3), "b": (2,)}
    with pytest.raises(AssertionError, match=r"no rule or more than one for \['b'\]"):
        account(rules[:1], own)
    with pytest.raises(AssertionError, match="more than one"):
        account([*rules, rename("c", "b")], own)
    with pytest.raises(AssertionError, match="two rules write b"):
        account([rename("b", "b"), rename("b", "c")], {"b": numbers(2), "c": numbers(2)})


def test_a_model_of_shapes_holds_nothing() -> None:
    family = families()["gpt2"]
    model = built_empty(family.config(family.sizes[0]))
    assert all(parameter.is_meta for parameter in model.parameters())


def test_the_listing_counts_one_family() -> None:
    found = list(published("gpt2"))
    assert (found[0].name, found[0].parameters, found[0].agrees) == ("gpt2", 124_439_808, True)
    assert {each.architecture for each in found} == {"GPT2LMHeadModel"}


@pytest.mark.parametrize(("rounded", "count", "same"), [
    (None, 1_000, True), (None, 1_001, False), (2, 1_040, True), (2, 1_060, False), (1, 1_400, True)])
def test_rounded_numbers_agree_to_their_digits(rounded: int | None, count: int, same: bool) -> None:
    assert agrees(Size("", "", {}, 1_000, "", "shape", rounded), count) == same
