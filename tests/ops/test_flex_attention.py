"""The form `flex` of attention. Where there is no GPU PyTorch's definition of the operator computes from all pairs, by
the functions of a pair, tables and gradients that it has on one; the blocks are held to the dense mask apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from weft.analysis.calls import training_step
from weft.analysis.flops import forward_flops
from weft.analysis.shapes import shape_of
from weft.core.clock import Keys
from weft.core.config import parse_part
from weft.core.errors import UnsupportedError
from weft.core.model import LanguageModel, ModelConfig
from weft.core.span import Span
from weft.masks import parse_mask
from weft.masks.visible import AllKeys, ExistingKeys, Grid, MaskedKeys, MaskFacts, Parts, VisibleKeys, visible
from weft.ops.attention import ATTENTION, AttentionCall, ScoreTerm, WrittenTerm, slid
from weft.ops.forms import forced
from weft.ops.triton import attention as flex
from weft.ops.triton import library

DEVICE = "cpu" if library.interpreted() else "cuda"
FORM = ATTENTION.form("flex")
SIDE = flex.SIDE
BOUND = 2e-5
"""Relative to the largest entry: sums of some hundred terms in float32, each rounded to 6e-8, in another order."""


class Distances(ScoreTerm):
    """A learned number for each head and distance, as T5 and ALiBi have."""

    by_distance = True

    def __init__(self, table: Tensor, learns: bool = True) -> None:
        self.table, self.learns = table, learns

    def distances(self, least: int, count: int) -> Tensor:
        middle = self.table.shape[2] // 2
        return self.table[..., middle + least : middle + least + count]

    def dense(self) -> Tensor:
        steps = self.table.shape[2] // 2 + 1
        return slid(self.distances(1 - steps, 2 * steps - 1), steps, steps)

    def at(self, queries: slice, keys: Parts) -> Tensor:
        raise NotImplementedError

    def same(self, grid: Grid) -> Tensor | None:
        raise NotImplementedError


def documents(rows: int, steps: int) -> Tensor:
    """Documents that begin anywhere, other ones in each row; the last of them late in a block."""
    begins = torch.rand(rows, steps, generator=torch.Generator().manual_seed(3)) < 4 / steps
    begins[:, -5] = True
    begins[:, 0] = True
    return begins.to(DEVICE)


def call_of(mask: str | None, steps: int, *, heads: int = 4, groups: int = 2, rows: int = 2,
            begins: Tensor | None = None, count: Tensor | None = None, facts: dict[str, Tensor] | None = None,
            prefix: Tensor | None = None, dtype: torch.dtype = torch.float32, **others: Any) -> AttentionCall:
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype).requires_grad_()

    q, k, v = make(rows, steps, heads, 16), make(rows, steps, groups, 16), make(rows, steps, groups, 24)
    span = Span(begins=begins, count=count, facts=facts, prefix=prefix).resolve(None, q)
    seen: VisibleKeys = AllKeys() if mask is None else visible(MaskFacts.of(parse_mask(mask), heads),
                                                               Keys.of(span.ticks), span)
    return AttentionCall(q, k, v, 0.25, seen, **others)


def near(found: Tensor, wanted: Tensor, bound: float = BOUND) -> None:
    assert found.shape == wanted.shape and found.isfinite().all()
    assert (found.double() - wanted.double()).abs().max() <= bound * wanted.abs().max()


def slopes(call: AttentionCall, form: str, others: list[Tensor]) -> list[Tensor]:
    y = ATTENTION(call, form)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return [y, *torch.autograd.grad(y, [call.q, call.k, call.v, *others], weights)]


def agree(call: AttentionCall, *others: Tensor, bound: float = BOUND) -> None:
    both = (slopes(call, form, list(others)) for form in ("flex", "reference"))
    for found, wanted in zip(*both, strict=True):
        near(found, wanted, bound)


MASKS = ["causal", "causal & window(40)", "causal & window(2)", "symmetric_window(30, 1)", "bidirectional",
         "causal | prefix", "causal & (window(9) | global(0, 3))", "dilated(20, 7)", "segments(64, 50)", "fixed(32, 3)",
         "per_head(causal, window(30))", "~window(50)", "causal & (window(3) | same_type | globals)"]


@pytest.mark.parametrize("packed", [False, True], ids=["one document", "documents"])
@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_has_the_values_and_gradients_of_the_reference(mask: str, packed: bool) -> None:
    """In rows of 300 tokens: two blocks and a part of one."""
    places = torch.arange(300, device=DEVICE).expand(2, -1)
    facts = {"types": places % 3, "globals": places % 97 == 5} if "same_type" in mask else None
    begins = documents(2, 300) if packed else None
    prefix = None
    if "prefix" in mask:  # the first tokens of the documents
        starts = documents(2, 300) if packed else places == 0
        prefix = starts | starts.roll(1, 1) | starts.roll(2, 1)
        prefix[:, -3:] = False
    agree(call_of(mask, 300, begins=begins, prefix=prefix, facts=facts))


def test_rows_of_many_blocks() -> None:
    for mask in ("causal & window(200)", "causal | prefix"):
        agree(call_of(mask, 1100, rows=1, begins=documents(1, 1100)))


@pytest.mark.parametrize("mask", ["causal", "bidirectional", "symmetric_window(20, 20)",
                                  "per_head(causal, bidirectional)"])
def test_padding_is_not_seen(mask: str) -> None:
    """Of tokens that exist: what comes out for padding means nothing."""
    call = call_of(mask, 200, count=torch.tensor([200, 131], device=DEVICE))
    found, wanted = (ATTENTION(call, form) for form in ("flex", "reference"))
    near(found[0], wanted[0])
    near(found[1, :131], wanted[1, :131])


def learned(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(DEVICE).requires_grad_()


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("mask", ["causal", "causal & window(50)", "bidirectional", None])
def test_biases_caps_and_sinks_and_what_they_learn(mask: str | None, heads: int) -> None:
    table, sinks, by_query = learned(1, heads, 2 * 150 - 1), learned(heads), learned(2, 150, heads)
    term = Distances(table)
    for one in (table, learned(2, heads, 299), learned(1, 1, 299), learned(2, 1, 299)):
        agree(call_of(mask, 150, heads=heads, terms=(Distances(one),)), one)
    # A sink's gradient is a sum over all queries, whose terms cancel to a tenth or less.
    agree(call_of(mask, 150, heads=heads, terms=(term, term), softcap=2.0, sinks=sinks), table, sinks, bound=2e-4)
    agree(call_of(mask, 150, heads=heads, softcap=2.0, sinks=by_query), by_query)


def test_a_query_without_a_visible_key_gives_zeros_and_takes_no_gradient() -> None:
    sinks = torch.zeros(4, device=DEVICE, requires_grad=True)
    for given in (None, sinks):
        call = call_of("~causal", 150, sinks=given)
        y = ATTENTION(call, "flex")
        assert torch.equal(y[:, -1], torch.zeros_like(y[:, -1])) and (y[:, 0] != 0).all()
        dq = torch.autograd.grad(y.square().sum(), call.q)[0]
        assert dq.isfinite().all() and torch.equal(dq[:, -1], torch.zeros_like(dq[:, -1]))
        agree(call, *(() if given is None else (given,)))


def test_autocast_narrows_it_as_it_does_pytorchs_fused_kernel() -> None:
    call = call_of("causal & window(40)", 150)
    with torch.autocast(DEVICE, torch.bfloat16):
        found = [ATTENTION(call, form) for form in ("flex", "sdpa")]
    assert [y.dtype for y in found] == [torch.bfloat16] * 2
    near(found[0].float(), found[1].float(), 2e-2)  # both round the weights to eight bits, at different places


def tiles(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Of a dense mask [B,H,T,S] whether each block has any visible pair, and whether all of its pairs are: one that
    reaches beyond the last token has not."""
    padded = torch.nn.functional.pad(allowed, (0, -allowed.shape[3] % SIDE, 0, -allowed.shape[2] % SIDE))
    cut = padded.unfold(2, SIDE, SIDE).unfold(3, SIDE, SIDE)
    return cut.any(-1).any(-1), cut.all(-1).all(-1)


def dense_of(counts: Tensor, places: Tensor) -> Tensor:
    kept = torch.arange(places.shape[-1], device=places.device) < counts[..., None]
    return torch.zeros_like(places, dtype=torch.bool).scatter(-1, places.long(), kept)


@pytest.mark.parametrize("steps", [256, 700])
@pytest.mark.parametrize("packed", [False, True], ids=["one document", "documents"])
@pytest.mark.parametrize("mask", [mask for mask in MASKS if mask not in ("bidirectional", MASKS[-1])])
def test_blocks_are_those_of_the_dense_mask(mask: str, packed: bool, steps: int,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Found for 128 or 256 queries at a time, where the rule is evaluated."""
    monkeypatch.setattr(flex, "PAIRS", 2 * 1000 * 256)
    call = call_of(mask, steps, begins=documents(2, steps) if packed else None)
    assert isinstance(call.visible, MaskedKeys)
    blocks = flex.seen_by(call.visible, call.q, call.k).blocks
    some, every = tiles(call.visible.dense())
    assert torch.equal(dense_of(*blocks[:2]).expand_as(some), some & ~every)
    assert torch.equal(dense_of(*blocks[2:4]).expand_as(some), every)
    assert torch.equal(dense_of(*blocks[4:6]).mT.expand_as(some), some & ~every)
    assert torch.equal(dense_of(*blocks[6:]).mT.expand_as(some), every)


class Largest(TorchDispatchMode):
    """The entries of the largest tensor that is made inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.entries = max(self.entries, made.numel())
        return made


def test_a_window_in_a_long_row_leaves_blocks_out_and_makes_no_tensor_of_all_pairs() -> None:
    """Of 512 keys in 32,768 tokens five blocks of 256 remain for each block of queries. `BlockMask` says the same."""
    from torch.nn.attention.flex_attention import BlockMask

    steps = 1 << 15
    q = torch.zeros(1, steps, 1, 16, device=DEVICE)
    for begins in (None, documents(1, steps)):
        span = Span(begins=begins).resolve(None, q)
        keys = visible(MaskFacts.of(parse_mask("causal & window(512)"), 1), Keys.of(span.ticks), span)
        with Largest() as seen:
            blocks = flex.seen_by(keys, q, q).blocks
        assert seen.entries == (steps // SIDE) ** 2, "whether each block has a visible pair"
        assert int((blocks.counts + blocks.full_counts).max()) == 512 // SIDE + 1
        mask = BlockMask((steps, steps), *blocks, BLOCK_SIZE=(SIDE, SIDE), mask_mod=lambda *_: torch.tensor(True))
        assert mask.sparsity() > 98


def test_a_rule_is_evaluated_for_some_queries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "PAIRS", 1 << 18)
    call = call_of("causal & (window(64) | global(0))", 2048, heads=1, groups=1, rows=1)
    with Largest() as seen:
        flex.seen_by(call.visible, call.q, call.k)
    assert seen.entries <= 1 << 18 < 2048 * 2048


def decoder(**attention: Any) -> ModelConfig:
    layers = [{"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "d_head": 16, **attention},
              {"kind": "mlp", "d_ff": 24}]
    found = parse_part(("model",), {"kind": "decoder", "vocab_size": 41, "context": 400, "d_model": 32,
                                    "blocks": [{"kind": "pre", "layers": layers}] * 3})
    assert isinstance(found, ModelConfig)
    return found


MODELS: dict[str, dict[str, Any]] = {
    "window, documents and ALiBi": {"mask": "causal & window(60)", "position": {"kind": "alibi"}},
    "T5": {"position": {"kind": "t5"}}, "caps and sinks": {"scores": {"softcap": 5.0}, "sinks": True},
    "window and rope": {"mask": "causal & window(60)", "position": {"kind": "rope"}},
    "prefix": {"mask": "causal | prefix"}}


@pytest.mark.parametrize("kind", MODELS)
def test_a_whole_model_forward_backward_and_in_pieces(kind: str) -> None:
    torch.manual_seed(0)
    model = cast(LanguageModel, decoder(**MODELS[kind]).build()).to(DEVICE)
    tokens, begins = torch.randint(41, (2, 300)).to(DEVICE), documents(2, 300)
    results = []
    for form in ("flex", "reference"):
        with forced({"attention": form}):
            y = model(tokens, None, Span(begins=begins)).y
            results.append([y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))])
    for found, wanted in zip(*results, strict=True):
        near(found, wanted, 1e-4)  # three layers forward and backward
    if kind in ("window, documents and ALiBi", "T5", "prefix"):
        return  # a prefix lies within one call, and keys of a state need not be as far apart as their places
    with torch.no_grad(), forced({"attention": "flex"}):
        state, pieces = model.init_state(2), list[Tensor]()
        for piece, marks in zip(tokens.split([130, 2, 168], 1), begins.split([130, 2, 168], 1), strict=True):
            out = model(piece, state, Span(begins=marks))
            pieces, state = [*pieces, out.y], out.state
    near(torch.cat(pieces, 1), results[1][0], 1e-4)


def test_blocks_are_found_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = decoder(mask="causal & window(60)").build().to(DEVICE), list[flex.KeptBlocks]()
    of = flex.KeptBlocks.of

    def noted(some: Tensor, every: Tensor) -> flex.KeptBlocks:
        found.append(of(some, every))
        return found[-1]

    monkeypatch.setattr(flex.KeptBlocks, "of", staticmethod(noted))
    for begins in (None, documents(2, 300)):
        with forced({"attention": "flex"}):
            model(torch.zeros(2, 300, dtype=torch.int64, device=DEVICE), None, Span(begins=begins))
    assert len(found) == 2, "one for each call of three layers"


@pytest.fixture
def traced() -> Iterator[Any]:
    """The number of graphs that are traced inside a test."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield lambda: torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


def test_one_program_serves_windows_of_all_widths_and_rows_of_all_lengths(traced: Any) -> None:
    """What runs on a GPU, traced and computed by PyTorch's operators; the second length makes a graph for all."""
    runs: dict[Any, Any] = {}

    def run(mask: str, steps: int, rows: int = 2, **others: Any) -> Tensor:
        call = call_of(mask, steps, rows=rows, **others)
        kind, arguments = flex.prepared(call)
        key = (kind, flex._likeness(*arguments))
        runs.setdefault(key, flex.compiled(*key, "eager"))
        with torch.no_grad():
            y = cast(Tensor, runs[key](*arguments))
            near(y, ATTENTION(call, "reference"))
        return y

    run("causal & window(40)", 300)
    run("causal & window(200)", 300)
    assert (len(runs), traced()) == (1, 1)
    for steps in (500, 700, 640):
        run("causal & window(40)", steps)
    run("symmetric_window(30, 5)", 350)
    assert (len(runs), traced()) == (1, 2)
    run("causal", 300, begins=documents(2, 300))
    run("causal & window(9)", 300, begins=documents(2, 300).roll(7, 1))
    assert (len(runs), traced()) == (2, 3)
    for width in (30, 31):
        run(f"causal & (window({width}) | global(0))", 300)
    assert (len(runs), traced()) == (4, 5), "other rules are compiled one by one"


def test_a_compiled_model_takes_it_into_its_graph(traced: Any) -> None:
    """In one graph, forward and backward."""
    torch.manual_seed(0)
    model = decoder(**MODELS["window, documents and ALiBi"]).build().to(DEVICE)
    tokens, results = torch.randint(41, (2, 200)).to(DEVICE), []
    for form in ("flex", "reference"):
        run = torch.compile(lambda x: model(x).y, backend="aot_eager", fullgraph=True) if form == "flex" else (
            lambda x: model(x).y)
        with forced({"attention": form}):
            y = run(tokens)
            results.append([y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))])
    assert traced() == 1
    for found, wanted in zip(*results, strict=True):
        near(found, wanted, 1e-4)


def test_operations_are_counted_in_both_directions() -> None:
    source, mode = decoder(**MODELS["T5"]), FakeTensorMode(allow_non_fake_inputs=True)
    counts = {}
    for form in ("flex", "reference"):
        with forced({"attention": form}):
            flops = forward_flops(shape_of(source, mode, None), mode, 256)
            assert flops.uncounted == ()
            counts[form] = {part.part: (part.full, part.visible) for part in flops.parts}, training_step(
                cast(LanguageModel, shape_of(source, mode, None)), mode, 2, 256).flops
    assert counts["flex"][0] == counts["reference"][0]
    assert counts["flex"][0]["attention scores"][0] == 3 * 2 * 256 * 4 * (16 + 16)
    # The scores again in the backward pass, in each of three layers; a written product keeps them.
    assert counts["flex"][1] - counts["reference"][1] == 3 * 2 * 2 * 256 * 256 * 4 * 16


@pytest.mark.parametrize(("call", "why"), [
    (call_of("causal", 9, dtype=torch.float64), "it runs only in bfloat16 or float16 or float32"),
    (call_of("causal", 9, dropout=0.5), "it has no dropout"),
    (call_of("causal", 9, record=lambda weights: None), "it returns no weights"),
    (call_of("causal", 9, terms=(WrittenTerm(torch.zeros(1, 1, 9, 9)),)), "a bias depends on more than distance"),
    (call_of("causal", 1), "it takes several queries"),
    (replace(call_of("causal", 9), visible=ExistingKeys(torch.ones(2, 9, dtype=torch.bool), 9)),
     "the keys that exist have no order"),
])
def test_why_a_call_is_not_served(call: AttentionCall, why: str) -> None:
    with pytest.raises(UnsupportedError, match=f"the form 'flex' of 'attention' cannot serve this call: {why}"):
        ATTENTION(call, "flex")


def test_a_learned_bias_is_not_served_where_bits_must_repeat() -> None:
    """The kernel adds its gradient in the order in which programs finish."""
    assert FORM.serves is not None
    learns, given = (call_of("causal", 9, terms=(Distances(torch.zeros(1, 4, 17), each),)) for each in (True, False))
    torch.use_deterministic_algorithms(True)
    try:
        assert FORM.serves(learns) == "sums of a learned bias have no fixed order"
        assert FORM.serves(given) is None
    finally:
        torch.use_deterministic_algorithms(False)
    assert FORM.serves(learns) is None


@pytest.mark.parametrize(("mask", "steps", "others", "pays"), [
    ("causal", 1024, {}, False), ("causal & window(2000)", 1024, {}, False), (None, 1024, {}, False),
    ("causal & window(128)", 300, {}, False), ("causal & window(128)", 1024, {}, True),
    ("causal | prefix", 1024, {}, True), ("causal", 1024, {"softcap": 5.0}, True), (None, 1024, {"softcap": 5.0}, True),
    ("causal", 1024, {"terms": (Distances(torch.zeros(1, 4, 2047)),)}, True),
    ("causal", 1024, {"begins": documents(2, 1024)}, True), ("causal", 1024, {"sinks": torch.zeros(4)}, True)])
def test_it_is_chosen_where_the_fused_kernel_would_need_a_mask(mask: str | None, steps: int, others: dict[str, Any],
                                                                pays: bool) -> None:
    names = [form.name for form in ATTENTION.forms()]
    assert names.index("flex") < names.index("banded") < names.index("sdpa") and FORM.worth is not None
    assert (FORM.worth(call_of(mask, steps, **others)) is None) is pays
