"""Products in float32 of narrower numbers: rounded once, in both directions."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from weft.core.clock import Keys
from weft.core.config import parse
from weft.core.part_config import Dims
from weft.core.span import WHOLE
from weft.linear.linear import Linear
from weft.masks import Causal
from weft.masks.visible import MaskFacts, VisibleKeys, visible
from weft.mixers.attention import AttentionConfig
from weft.ops import wide_linear as wide
from weft.ops.attention import ATTENTION, AttentionCall, sdpa, wide_sdpa
from weft.ops.linear import LINEAR, WIDE, LinearCall, Product, routed, widens


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 40), (5, 40), (40,), (0, 40)])
def test_values_and_gradients_are_those_of_float32_rounded_once(
        shape: tuple[int, ...], bias: bool, pieces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pieces:
        monkeypatch.setattr(wide, "PIECE_ENTRIES", 80)  # two rows
    torch.manual_seed(0)
    linear = nn.Linear(40, 7, bias=bias, dtype=torch.bfloat16)
    x = torch.randn(shape).bfloat16().requires_grad_()
    y = wide.wide_linear(x, linear.weight, linear.bias)
    dy = torch.randn(y.shape).bfloat16()
    narrow = torch.autograd.grad(y, [x, *linear.parameters()], dy)

    exact = [value.detach().double().requires_grad_() for value in (x, *linear.parameters())]
    truth = F.linear(exact[0], exact[1], exact[2] if bias else None)
    gradients = torch.autograd.grad(truth, exact, dy.double())
    for found, wanted in zip([y, *narrow], [truth, *gradients], strict=True):
        assert found.dtype == torch.bfloat16
        # Half of the spacing of bfloat16, whose mantissa has eight bits, and what float32 rounds before it.
        torch.testing.assert_close(found.double(), wanted, rtol=2**-8 + 1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "shared", "columns"), [(9, 4, 6), (3, 50, 6), (1, 1, 1), (0, 4, 6), (5, 0, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_pieces_of_rows_and_of_sums_give_one_product(rows: int, shared: int, columns: int, bias: bool,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "PIECE_ENTRIES", 2 * max(rows, columns, min(shared, columns)))
    torch.manual_seed(0)
    a, b = torch.randn(rows, shared).bfloat16(), torch.randn(shared, columns).bfloat16()
    added = torch.randn(columns).bfloat16() if bias else None
    truth = a.double() @ b.double() + (0 if added is None else added.double())
    found = wide.wide_product(a, b, added)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), truth, rtol=2**-8 + 1e-5, atol=1e-5)


@pytest.mark.parametrize("lacks", [True, False])
def test_what_was_measured_goes_before_what_the_instructions_let_expect(lacks: bool,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.ops.linear.lacks_bfloat16", lambda: lacks)
    small, large = (Product("forward", 8, size, size, "torch.bfloat16") for size in (4, 40))
    x = torch.zeros(2, dtype=torch.bfloat16)
    for known, expected in (({large: WIDE, small: "onednn"}, True), ({large: "onednn", small: WIDE}, False),
                            ({large._replace(dtype="torch.float32"): "onednn"}, lacks)):
        with routed(known):
            assert widens(x) == expected
    assert widens(x) == lacks


def test_attention_is_made_in_float32_where_products_are() -> None:
    torch.manual_seed(0)
    # Fewer queries than the form in C pays for.
    q, k, v = (torch.randn(2, 21, heads, 8).bfloat16().requires_grad_() for heads in (4, 2, 2))
    call = AttentionCall(q, k, v, 0.3, _causal(q))
    with routed({Product("forward", 8, 4, 4, "torch.bfloat16"): WIDE}):
        assert ATTENTION.choose(call).form.name == "wide_sdpa"
        y = ATTENTION(call)
        with torch.no_grad():
            assert ATTENTION.choose(call).form.name == "sdpa"
    dy = torch.randn(y.shape).bfloat16()
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    truth = sdpa(AttentionCall(*exact, 0.3, _causal(q)))
    for found, wanted in zip([y, *torch.autograd.grad(y, [q, k, v], dy)],
                             [truth, *torch.autograd.grad(truth, exact, dy.double())], strict=True):
        assert found.dtype == torch.bfloat16
        # One rounding of the result to eight bits; that of y reaches the gradients through the sum of y dy besides.
        torch.testing.assert_close(found.double(), wanted, rtol=2**-8, atol=2**-8 * float(wanted.detach().abs().max()))


def test_attention_in_float32_keeps_as_much_as_in_its_own_dtype() -> None:
    q, k, v = (torch.randn(2, 64, 2, 8).bfloat16().requires_grad_() for _ in range(3))
    call, kept = AttentionCall(q, k, v, 0.3, _causal(q)), []
    for form in (wide_sdpa, sdpa):
        y = form(call)
        kept.append(sum(x.nbytes for x in _saved(y)))
        del y
    assert kept[0] <= kept[1]


def _causal(q: torch.Tensor) -> VisibleKeys:
    span = WHOLE.resolve(None, q)
    return visible(MaskFacts.of(Causal(), q.shape[2]), Keys.of(span.ticks), span)


def _saved(y: torch.Tensor) -> list[torch.Tensor]:
    """What the kernel's node of a result keeps, as it is stored."""
    node = y.grad_fn
    while node is not None and "attention" not in node.name().lower():
        node = node.next_functions[0][0]
    assert node is not None
    names = [name for name in dir(node) if name.startswith("_raw_saved_")]
    found = [getattr(node, name) for name in names]
    return [value.data for value in found if value.data is not None]


def test_every_linear_map_of_a_model_takes_the_wide_form_where_the_processor_lacks_the_other(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.ops.linear.lacks_bfloat16", lambda: True)
    x, map_ = torch.randn(3, 4).bfloat16(), Linear(4, 5).bfloat16()
    call = LinearCall(x, map_.weight, map_.bias)
    assert LINEAR.choose(call).form.name == "wide"
    torch.testing.assert_close(map_(x), wide.wide_linear(x, map_.weight, map_.bias), rtol=0, atol=0)
    with torch.no_grad():  # a few rows do not pay for making a matrix wide
        few, rule = LinearCall(x[:1], map_.weight, map_.bias), LINEAR.form("wide").worth
        assert LINEAR.choose(few).form.name == "native"
        assert rule is not None and rule(few) == f"at most {wide.FEW_ROWS} rows"


def test_a_processor_with_instructions_for_bfloat16_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, single = torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)
    monkeypatch.setattr("weft.ops.linear.lacks_bfloat16", lambda: False)
    assert not widens(narrow)
    monkeypatch.setattr("weft.ops.linear.lacks_bfloat16", lambda: True)
    assert widens(narrow)
    assert not widens(single)
    assert not widens(narrow.to("meta"))


def test_a_linear_map_in_bfloat16_is_traced_as_one_graph() -> None:
    """Whether the processor has the instructions is no call that breaks the graph."""
    torch._dynamo.reset()
    map_, x = Linear(4, 5).bfloat16(), torch.randn(3, 4).bfloat16()
    compiled = torch.compile(lambda x: map_(x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), map_(x), rtol=0, atol=0)


def test_linear_maps_and_attention_by_way_of_float32_are_traced_as_one_graph() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = parse(AttentionConfig, {"n_heads": 2}).build(Dims(8)).bfloat16()
    x = torch.randn(2, 9, 8).bfloat16().requires_grad_()
    with routed({Product("forward", 18, 8, 24, "torch.bfloat16"): WIDE}):
        compiled = torch.compile(lambda x: layer(x).y, fullgraph=True, backend="aot_eager")
        y, own = compiled(x), layer(x).y
        torch.testing.assert_close(y, own, rtol=2**-7, atol=2**-8)  # the graph may round elsewhere
        for found, expected in zip(*(torch.autograd.grad(each.sum(), [x, *layer.parameters()]) for each in (y, own)),
                                   strict=True):
            torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-6 * float(expected.abs().max()))
