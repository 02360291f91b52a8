"""Masks in configuration files: what is read, what is written back, what is refused in which words."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.part_config import About, Settings
from weft.masks import (
    Bidirectional,
    Block,
    Causal,
    Dilated,
    Documents,
    Fixed,
    GlobalTokens,
    Key,
    Mask,
    MaskField,
    Padding,
    PerHead,
    Prefix,
    Query,
    Segments,
    Strided,
    SymmetricWindow,
    Window,
    known_masks,
    parse_mask,
    register_mask,
)
from weft.masks.expression import MASKS as KNOWN

LEAVES = st.one_of(
    st.sampled_from([Causal(), Bidirectional(), Prefix(), Documents(), Padding()]),
    st.tuples(st.integers(1, 9), st.integers(0, 9)).map(lambda two: Segments(*two)),
    st.integers(1, 99).map(Window), st.integers(1, 9).map(Strided), st.integers(1, 9).map(Block),
    st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda two: SymmetricWindow(*two)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda two: Dilated(*two)),
    st.tuples(st.integers(1, 3), st.integers(0, 2)).map(lambda two: Fixed(9, *two)),
    st.lists(st.integers(0, 20), min_size=1, max_size=3).map(lambda some: GlobalTokens(*some)))

MASKS = st.recursive(LEAVES, lambda inner: st.one_of(
    st.tuples(inner, inner).map(lambda two: two[0] & two[1]), st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
    inner.map(lambda one: ~one), st.lists(inner, min_size=2, max_size=3).map(lambda some: PerHead(*some))),
    max_leaves=8)


class Part(Settings):
    """A part with a mask, as attention has one."""

    mask: Annotated[Mask, MaskField()] = Causal()


@settings(max_examples=100, deadline=None)
@given(mask=MASKS)
def test_what_is_written_is_read_back(mask: Mask) -> None:
    again = parse_mask(repr(mask))
    assert again == mask
    assert repr(again) == repr(mask)
    assert hash(again) == hash(mask)
    assert pickle.loads(pickle.dumps(mask)) == mask == copy.deepcopy(mask)


@pytest.mark.parametrize(("text", "mask", "written"), [
    ("causal", Causal(), "causal"),
    ("causal()", Causal(), "causal"),
    ("  causal&window( 128 ) ", Causal() & Window(128), "causal & window(128)"),
    ("causal & (window(4) | global(0))", Causal() & (Window(4) | GlobalTokens(0)), "causal & (window(4) | global(0))"),
    ("causal & window(4) | global(2, 0)", Causal() & Window(4) | GlobalTokens(0, 2),
     "(causal & window(4)) | global(0, 2)"),
    ("~causal & prefix", ~Causal() & Prefix(), "~causal & prefix"),
    ("~(causal | prefix)", ~(Causal() | Prefix()), "~(causal | prefix)"),
    ("fixed(8, summary=2)", Fixed(8, 2), "fixed(8, 2)"),
    ("fixed(8, 2, head=1)", Fixed(8, 2, 1), "fixed(8, 2, 1)"),
    ("per_head(window(4) | prefix, strided(4))", PerHead(Window(4) | Prefix(), Strided(4)),
     "per_head(window(4) | prefix, strided(4))"),
])
def test_expressions(text: str, mask: Mask, written: str) -> None:
    assert parse_mask(text) == mask
    assert repr(mask) == written


@pytest.mark.parametrize(("mapping", "mask"), [
    ({"kind": "causal"}, Causal()),
    ({"kind": "window", "size": 4}, Window(4)),
    ({"kind": "fixed", "stride": 8, "summary": 2}, Fixed(8, 2)),
    ({"kind": "global", "indices": [0, 3]}, GlobalTokens(0, 3)),
    ({"kind": "global", "indices": 3}, GlobalTokens(3)),
    ({"kind": "per_head", "masks": ["causal & window(4)", {"kind": "strided", "stride": 4}]},
     PerHead(Causal() & Window(4), Strided(4))),
])
def test_mappings(mapping: dict[str, object], mask: Mask) -> None:
    assert parse_mask(mapping) == mask


@pytest.mark.parametrize(("value", "message"), [
    ("windw(3)", r"no mask is called 'windw'\. Did you mean 'window'\?"),
    ("zzz", r"no mask is called 'zzz'\. Known names: bidirectional, block, causal, dilated"),
    ("global", r"global: no token is given"),
    ("window(0)", r"window: size is 0, but a window holds at least the query's own key\. Give 1 or more\."),
    ("window('a')", r"window: size is 'a', but must be an integer"),
    ("window(True)", r"window: size is True, but must be an integer"),
    ("window(-2)", r"window: size is -2, but"),
    ("window()", r"window: missing a required argument: 'size'\. Write window\(size\)\."),
    ("window(1, 2)", r"window: too many positional arguments\. Write window\(size\)\."),
    ("fixed(4, 1, hed=2)", r"fixed: got an unexpected keyword argument 'hed'\. Write fixed\(stride, summary, head=0\)"),
    ("global(a=1)", r"global: got an unexpected keyword argument 'a'\. Write global\(\*indices\)\."),
    ("causal(3)", r"causal: too many positional arguments\. Write causal\."),
    ("causal and window(2)", r"'causal and window\(2\)' is not a mask expression\. Write mask names joined by"),
    ("causal &", r"'causal &' is not a mask expression"),
    ("", r"'' is not a mask expression"),
    ("causal\x00", r"is not a mask expression"),
    ("(" * 500 + "causal" + ")" * 500, r"is not a mask expression"),
    ("~" * 5000 + "causal", r"is not a mask expression"),
    ("causal + prefix", r"'causal \+ prefix' in 'causal \+ prefix' is not a mask\. Write mask names joined by"),
    ("causal & 3", r"'3' in 'causal & 3' is not a mask"),
    ("window(causal)", r"window: size is causal, but must be an integer"),
    ("__import__('os').getcwd()", r"is not a mask"),
    ("window(*[3])", r"'\*\[3\]' in .* is not a mask"),
    ("window(**{})", r"is not a mask"),
    (3, r"3 is not a mask\. Write mask names joined by"),
    (None, r"None is not a mask"),
    ({"size": 3}, r"\{'size': 3\} does not name a mask\. Give its kind, as in \{kind: window, size: 1"),
    ({"kind": "windw"}, r"no mask is called 'windw'\. Did you mean 'window'\?"),
    ({"kind": "window", "sise": 3}, r"window: unknown key 'sise'\. Did you mean 'size'\?"),
    ({"kind": "window"}, r"window: missing a required argument: 'size'"),
    ({"kind": "per_head", "masks": ["causal", "windw(2)"]}, r"no mask is called 'windw'"),
    ({"kind": "global", "indices": [True]}, r"global: indices is True, but must be an integer"),
], ids=range(32))
def test_what_is_refused(value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_mask(value)


def test_a_field_reads_and_writes_expressions() -> None:
    part = parse(Part, {"mask": "causal & window(4)"})
    assert part.mask == Causal() & Window(4)
    assert part.model_dump(mode="json") == {"mask": "causal & window(4)"}
    assert Part.model_validate_json(part.model_dump_json()) == part
    assert Part(mask=PerHead(Window(2), Strided(2))).model_dump() == {"mask": "per_head(window(2), strided(2))"}
    assert Part().mask == Causal()


def test_a_field_says_where_a_mask_is_wrong() -> None:
    with pytest.raises(ConfigError, match=r"- mask: no mask is called 'casual'\. Did you mean 'causal'\?"):
        parse(Part, {"mask": "casual"})
    with pytest.raises(ConfigError, match=r"- mask: window: size is 0, but .* Give 1 or more\."):
        parse(Part, {"mask": "causal & window(0)"})


def test_the_schema_is_a_string_with_the_known_masks() -> None:
    field = Part.model_json_schema(mode="serialization")["properties"]["mask"]
    assert field["type"] == "string"
    assert field["default"] == "causal"
    assert "symmetric_window(left, right, dilation=1)" in field["description"]
    assert all(repr(parse_mask(example)) == example for example in field["examples"])


@pytest.fixture
def masks_of_a_test() -> Iterator[None]:
    """What the test registers is known in it alone."""
    before = dict(KNOWN)
    yield
    KNOWN.clear()
    KNOWN.update(before)


@pytest.mark.usefixtures("masks_of_a_test")
def test_a_registered_mask_is_known_everywhere() -> None:
    @register_mask
    @dataclass(frozen=True, repr=False)
    class Even(Mask):
        """Keys of even order."""

        kind: ClassVar[str] = "test_even"
        about = About(source="this test")

        def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
            return key.order % 2 == 0

    mask = parse_mask("causal & test_even")
    assert mask == Causal() & Even()
    assert mask.draw(4).split("\n") == ["# . . .", "# . . .", "# . # .", "# . # ."]
    assert Even in known_masks()
    assert (mask.reach(), mask.causal(), Even().lookahead(), Even().pattern()) == (None, True, "any", None)


def test_two_masks_of_one_kind_are_refused() -> None:
    @dataclass(frozen=True, repr=False)
    class Other(Mask):
        kind: ClassVar[str] = "causal"

        def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
            return key.order < query.order

    with pytest.raises(ConfigError, match=r"the mask 'causal' is defined by weft\.masks\.basic and by .*another kind"):
        register_mask(Other)


def test_a_mask_without_a_usable_kind_is_refused() -> None:
    @dataclass(frozen=True, repr=False)
    class Nameless(Mask):
        kind: ClassVar[str] = "every other"

        def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
            return key.order % 2 == 0

    with pytest.raises(ConfigError, match=r"has the kind 'every other', which is not a name\. Set `kind` to letters"):
        register_mask(Nameless)
