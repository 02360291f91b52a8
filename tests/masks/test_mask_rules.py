"""Every mask, and random trees of masks, against per-pair Python loops; and what masks promise of themselves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oracles import masks as oracle
from weft.core.clock import Clock, Keys, Ticks, resolve_call
from weft.core.errors import ConfigError, InputError
from weft.masks import (
    And,
    Bidirectional,
    Block,
    Causal,
    Dilated,
    Documents,
    Fixed,
    GlobalTokens,
    Mask,
    Not,
    Or,
    Padding,
    Pattern,
    PerHead,
    Prefix,
    Segments,
    Strided,
    SymmetricWindow,
    Window,
    known_masks,
    parse_mask,
)

LEAVES = [Causal(), Bidirectional(), Prefix(), Documents(), Padding(), Window(1), Window(3), SymmetricWindow(2, 1),
          SymmetricWindow(1, 0), Dilated(3, 2), Dilated(2, 1), SymmetricWindow(1, 2, 2),
          SymmetricWindow(0, 0, 3), Strided(1), Strided(3), Block(3), Fixed(3, 1),
          Fixed(4, 2, 1), GlobalTokens(0), GlobalTokens(1, 3), Segments(3, 2), Segments(2, 0)]


@dataclass(frozen=True)
class Row:
    """One row of tokens: where documents begin, which tokens are prefix, how many exist. What is said of tokens beyond
    the count does not count: they stand after the last document's tokens."""

    begins: list[bool]
    prefix: list[bool]
    count: int

    def real(self, flags: list[bool]) -> list[bool]:
        return [flag and t < self.count for t, flag in enumerate(flags)]

    def begin(self, i: int) -> int:
        """Order of the first token of token i's document."""
        document = oracle.document_of(self.real(self.begins))
        return document.index(document[i])

    def tensors(self) -> dict[str, Tensor]:
        return {"begins": torch.tensor([self.begins]), "prefix": torch.tensor([self.prefix]),
                "count": torch.tensor([self.count])}


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """Up to three documents of up to five tokens, each with a prefix, and any number of tokens padding."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    begins, prefix = [], []
    for size in sizes:
        inside = draw(st.integers(0, size))
        begins += [True] + [False] * (size - 1)
        prefix += [True] * inside + [False] * (size - inside)
    return Row(begins, prefix, draw(st.integers(1, sum(sizes))))


def trees(leaves: list[Mask]) -> st.SearchStrategy[Mask]:
    """Random expressions, heads that differ included."""
    def grow(inner: st.SearchStrategy[Mask]) -> st.SearchStrategy[Mask]:
        pairs = st.tuples(inner, inner)
        return st.one_of(pairs.map(lambda two: two[0] & two[1]), pairs.map(lambda two: two[0] | two[1]),
                         inner.map(lambda one: ~one), pairs.map(lambda two: PerHead(*two)))

    return st.recursive(st.sampled_from(leaves), grow, max_leaves=5)


def expected(mask: Mask, i: int, j: int, head: int, row: Row) -> bool:
    """What the rule says of query i and key j, by recursion over the tree and the oracle's predicates."""
    begin = row.begin(i)
    own, other = i - begin, j - begin
    match mask:
        case And(operands):
            return all(expected(part, i, j, head, row) for part in operands)
        case Or(operands):
            return any(expected(part, i, j, head, row) for part in operands)
        case Not(operand):
            return not expected(operand, i, j, head, row)
        case PerHead(masks=masks):
            return expected(masks[head % len(masks)], i, j, head, row)
        case Causal():
            return oracle.causal(i, j)
        case Bidirectional():
            return True
        case Prefix():
            return row.real(row.prefix)[j] and oracle.same_document(i, j, row.real(row.begins))
        case Documents():
            return oracle.same_document(i, j, row.real(row.begins))
        case Padding():
            return oracle.real_key(i, j, [t < row.count for t in range(len(row.begins))])
        case Window(size):
            return oracle.window(i, j, size)
        case SymmetricWindow(left, right, dilation):
            return j in range(i - left * dilation, i + right * dilation + 1, dilation)
        case Dilated(size, dilation):
            return oracle.window_dilated(i, j, size, dilation)
        case Strided(stride):
            return oracle.strided(i, j, stride)
        case Block(stride):
            return oracle.fixed_local(own, other, stride)
        case Segments(size, memory):
            return oracle.segments(own, other, size, memory)
        case Fixed(stride, summary, number):
            return oracle.fixed(own, other, stride, summary, number)
        case GlobalTokens(indices=indices):
            return oracle.global_tokens(own, other, indices)
    raise AssertionError(f"no oracle for {mask!r}")


def written_out(mask: Mask, row: Row) -> Tensor:
    """[H,T,T] by loops."""
    tokens = range(len(row.begins))
    return torch.tensor([[[expected(mask, i, j, head, row) for j in tokens] for i in tokens]
                         for head in range(mask.heads())])


def seen(mask: Mask, row: Row) -> Tensor:
    """[H,T,T] by the mask itself."""
    tokens = len(row.begins)
    return mask.dense(tokens, **row.tensors())[0].expand(mask.heads(), tokens, tokens)


def test_every_known_mask_is_among_the_leaves() -> None:
    ours = {mask.kind for mask in known_masks() if mask.__module__.startswith("weft.")}
    of_facts = {"same_type", "globals"}  # which need a span: tests/core/test_facts.py
    assert ours == {type(mask).kind for mask in LEAVES} | {"per_head"} | of_facts
    assert all(mask.about.source and mask.__doc__ for mask in known_masks())


@pytest.mark.parametrize("mask", LEAVES, ids=repr)
@settings(max_examples=20, deadline=None)
@given(row=rows())
def test_a_mask_equals_the_oracle(mask: Mask, row: Row) -> None:
    assert torch.equal(seen(mask, row), written_out(mask, row))


@settings(max_examples=60, deadline=None)
@given(mask=trees(LEAVES), row=rows())
def test_a_tree_equals_the_oracle(mask: Mask, row: Row) -> None:
    assert torch.equal(seen(mask, row), written_out(mask, row))


@settings(max_examples=60, deadline=None)
@given(a=trees(LEAVES), b=trees(LEAVES), row=rows())
def test_the_operators_are_boolean_algebra(a: Mask, b: Mask, row: Row) -> None:
    """Simplification included: every operator equals the operation on the dense masks, and De Morgan's laws hold."""
    heads, tokens = (a & PerHead(Causal(), b)).heads(), len(row.begins)

    def dense(mask: Mask) -> Tensor:
        return seen(mask, row).repeat(heads // mask.heads(), 1, 1)

    assert torch.equal(dense(a & b), dense(a) & dense(b))
    assert torch.equal(dense(a | b), dense(a) | dense(b))
    assert torch.equal(dense(~a), ~dense(a))
    assert torch.equal(dense(~(a & b)), dense(~a | ~b))
    assert torch.equal(dense(~(a | b)), dense(~a & ~b))
    assert dense(a).shape == (heads, tokens, tokens)


@settings(max_examples=100, deadline=None)
@given(mask=trees(LEAVES), row=rows())
def test_what_a_tree_promises_of_itself_is_true(mask: Mask, row: Row) -> None:
    allowed = written_out(mask, row)
    order = torch.arange(len(row.begins))
    back = order[:, None] - order[None]
    reach = mask.reach()
    if reach is not None:
        assert not allowed[:, back >= reach].any()
    later = allowed & (back < 0)
    if mask.causal():
        assert not later.any()
    if mask.lookahead() == "prefix":
        assert not (later & ~written_out(Prefix(), row)).any()
    pattern = mask.pattern()
    if pattern is not None:
        assert torch.equal(allowed, written_out(spelt(pattern), row).expand_as(allowed))


def spelt(pattern: Pattern) -> Mask:
    """The mask that a pattern describes."""
    mask: Mask = Causal() if pattern.causal else Bidirectional()
    if pattern.size is not None:
        mask = mask & (SymmetricWindow(pattern.size - 1, pattern.ahead) if pattern.ahead else Window(pattern.size))
    if pattern.documents:
        mask = mask & Documents()
    return mask & Padding() if pattern.padding else mask


@pytest.mark.parametrize(("text", "reach", "lookahead"), [
    ("causal", None, "none"), ("causal & window(128)", 128, "none"), ("window(4) | window(7)", 7, "none"),
    ("window(4) | causal", None, "none"), ("~window(4)", None, "any"), ("causal & ~window(4)", None, "none"),
    ("symmetric_window(3, 2)", 4, "any"), ("symmetric_window(3, 0)", 4, "none"),
    ("symmetric_window(3, 1, 2)", 7, "any"), ("dilated(3, 4)", 9, "none"),
    ("segments(4, 3)", 7, "none"), ("block(5)", 5, "none"), ("causal | prefix", None, "prefix"),
    ("bidirectional", None, "any"),
    ("per_head(window(4), window(6))", 6, "none"), ("per_head(window(4), strided(4))", None, "none"),
    ("window(4) & (causal | prefix)", 4, "none"), ("prefix & symmetric_window(2, 2)", 3, "prefix"),
    ("causal & (window(4) | global(0))", None, "none"), ("window(4) | global(0)", None, "any"),
])
def test_reach_and_lookahead_are_as_tight_as_the_form_allows(text: str, reach: int | None, lookahead: str) -> None:
    mask = parse_mask(text)
    assert (mask.reach(), mask.lookahead(), mask.causal()) == (reach, lookahead, lookahead == "none")


def test_a_kernel_recognises_causal_and_window() -> None:
    assert Causal().causal_window() == Pattern(causal=True)
    assert (Causal() & Window(4) & Window(3)).causal_window() == Pattern(causal=True, size=3)
    assert (Window(4) & Documents() & Padding()).causal_window() == Pattern(True, 4, documents=True, padding=True)
    assert PerHead(Window(4), Causal() & Window(4)).causal_window() == Pattern(causal=True, size=4)
    for other in (Bidirectional(), Documents(), ~Causal(), Causal() | Prefix(), Causal() & Strided(2),
                  PerHead(Window(4), Window(5))):
        assert other.causal_window() is None


@pytest.mark.parametrize(("mask", "simple"), [
    (Causal() & Causal(), Causal()), (Causal() | Causal(), Causal()), (~~Window(3), Window(3)),
    (Causal() & Bidirectional(), Causal()), (Causal() | Bidirectional(), Bidirectional()),
    (Bidirectional() & Bidirectional(), Bidirectional()),
    (Causal() & (Causal() | Prefix()), Causal()), (Causal() | (Causal() & Prefix()), Causal()),
    ((Causal() & Prefix()) & (Documents() & Prefix()), And((Causal(), Prefix(), Documents()))),
    ((Causal() | Prefix()) | Documents(), Or((Causal(), Prefix(), Documents()))),
], ids=repr)
def test_nested_forms_are_simplified(mask: Mask, simple: Mask) -> None:
    assert mask == simple
    assert hash(mask) == hash(simple)


def test_only_masks_join() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        Causal() & "window(3)"  # type: ignore[operator]
    with pytest.raises(TypeError, match="unsupported operand"):
        Causal() | None  # type: ignore[operator]


@settings(max_examples=100, deadline=None)
@given(mask=trees([leaf for leaf in LEAVES if leaf.causal()] + [Documents(), Prefix()]), row=rows())
def test_keys_without_their_begins_are_enough_under_a_causal_mask(mask: Mask, row: Row) -> None:
    joined = Causal() & mask
    ticks, keys = both(row)
    bare = Keys(keys.order, keys.position, None, keys.valid)
    assert torch.equal(joined.allowed(ticks, bare), joined.allowed(ticks, keys))


def both(row: Row) -> tuple[Ticks, Keys]:
    tensors = row.tensors()
    ticks = resolve_call(None, (1, len(row.begins)), torch.device("cpu"), count=tensors["count"],
                         begins=tensors["begins"], prefix=tensors["prefix"], coordinates=None, horizon=None,
                         one_document=False).ticks
    return ticks, Keys.of(ticks)


@settings(max_examples=60, deadline=None)
@given(mask=trees(LEAVES), steps=st.integers(1, 4), rest=st.integers(1, 4))
def test_a_continued_call_sees_the_last_rows(mask: Mask, steps: int, rest: int) -> None:
    """Chunked by a clock, queries see what they see in the whole; row 1 began three tokens later than row 0."""
    clock = Clock.start(2)
    clock = clock.replace(seen=clock.seen + torch.tensor([steps + 3, steps]))
    ticks = resolve_call(clock, (2, rest), torch.device("cpu"), count=None, begins=None, prefix=None, coordinates=None,
                         horizon=None, one_document=True).ticks
    for row, seen_before in enumerate((steps + 3, steps)):
        total = seen_before + rest
        keys = Keys(torch.arange(total)[None], torch.arange(total)[None], torch.zeros(1, total, dtype=torch.int64))
        found = mask.allowed(ticks, keys).expand(2, mask.heads(), rest, total)[row]
        whole = mask.dense(total)[0].expand(mask.heads(), total, total)
        assert torch.equal(found, whole[:, -rest:])
        assert torch.equal(mask.dense(rest, total)[0].expand_as(found), found)


def test_heads_are_written_out_to_the_number_asked_for() -> None:
    mask = PerHead(Window(2), Strided(2), Causal()) & PerHead(Causal(), Documents())
    ticks, keys = both(Row([True] + [False] * 6, [False] * 7, 7))
    assert mask.heads() == 6
    twelve = mask.allowed(ticks, keys, heads=12)
    assert torch.equal(twelve, mask.allowed(ticks, keys).repeat(1, 2, 1, 1))
    assert torch.equal(twelve[0, 4], (Strided(2) & Causal()).dense(7)[0, 0])
    nested = PerHead(PerHead(Window(2), Strided(2)), Causal(), Block(2))
    written = torch.cat([part.dense(7)[0] for part in (Window(2), Causal(), Block(2), Strided(2), Causal(), Block(2))])
    assert nested.heads() == 6
    assert torch.equal(nested.dense(7)[0], written)


def test_a_compiled_call_equals_the_plain_one() -> None:
    mask = parse_mask("per_head(causal & (window(3) | global(0)), strided(3)) | padding & prefix & ~block(2)")
    ticks, keys = both(Row([True, False, False, True, False, False], [True, True, False, True, False, False], 3))
    torch._dynamo.reset()
    compiled = torch.compile(lambda: mask.allowed(ticks, keys), fullgraph=True, backend="eager")
    assert torch.equal(compiled(), mask.allowed(ticks, keys))


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Window(0), r"window: size is 0, but a window holds at least the query's own key\. Give 1 or more\."),
    (lambda: Window(2.5), r"window: size is 2\.5, but must be an integer\. Give 1 or more\."),
    (lambda: Window(True), r"window: size is True, but must be an integer"),
    (lambda: SymmetricWindow(-1, 2), r"symmetric_window: left is -1, but a number of keys cannot be negative"),
    (lambda: SymmetricWindow(1, 1, 0), r"symmetric_window: dilation is 0, but keys are at least one token apart"),
    (lambda: SymmetricWindow(1, -2), r"symmetric_window: right is -2, but a number of keys cannot be negative"),
    (lambda: Dilated(0, 2), r"dilated: size is 0, but a window holds at least"),
    (lambda: Dilated(2, 0), r"dilated: dilation is 0, but keys are at least one token apart\. Give 1 or more\."),
    (lambda: Strided(0), r"strided: stride is 0, but keys are at least one token apart"),
    (lambda: Block(0), r"block: stride is 0, but a block holds at least the query's own key"),
    (lambda: Segments(0, 1), r"segments: size is 0, but a segment holds at least the query's own key"),
    (lambda: Segments(1, -1), r"segments: memory is -1, but a number of keys cannot be negative"),
    (lambda: Fixed(0, 1), r"fixed: stride is 0, but a block holds at least one token"),
    (lambda: Fixed(4, 0), r"fixed: summary is 0, but a block has at least one summary column"),
    (lambda: Fixed(4, 1, -1), r"fixed: head is -1, but heads are counted from 0"),
    (lambda: Fixed(4, 2, 2), r"fixed: summary columns 2 of head 2 lie outside a block of 4\. Keep \(head \+ 1\)"),
    (lambda: GlobalTokens(), r"global: no token is given\. Give the indices of the global tokens"),
    (lambda: GlobalTokens(0, -1), r"global: indices is -1, but tokens are counted from the begin of their document"),
    (lambda: PerHead(Causal()), r"per_head: 1 masks, and heads differ only with two or more\. Give one"),
    (lambda: PerHead(Causal(), 3), r"per_head: 3 is not a mask\. Give one mask for each head"),
], ids=range(20))
def test_wrong_arguments_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_more_queries_than_keys_are_refused() -> None:
    with pytest.raises(InputError, match=r"Mask\.dense: 5 queries among 3 tokens\. The queries are the last"):
        Causal().dense(5, 3)
