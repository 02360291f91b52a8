"""Layers of attention by each form, over masks, positions, documents, lengths and states: values and gradients against
the naive form, in rows that pass the borders of blocks and windows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import randomise
from weft.core.clock import Keys
from weft.core.config import parse
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.part_config import Dims
from weft.core.probes import probe
from weft.core.span import WHOLE, Memory, Span
from weft.mixers.attention import Attention, AttentionConfig
from weft.mixers.cross_attention import CrossAttention, CrossAttentionConfig
from weft.mixers.key_value import ReadableKeys
from weft.mixers.self_attention import RollingState
from weft.ops.attention import ATTENTION, ROWS
from weft.ops.banded_attention import LONG_BIASED
from weft.ops.forms import forced

D = 6
LONG = 2 * ROWS + 45
MASKS = ["causal", "causal & window(5)", f"causal & window({ROWS + 20})", "causal & (window(4) | global(0, 2))",
         "per_head(window(3), dilated(3, 2))", "block(7)", "symmetric_window(3, 2)"]
POSITIONS: list[Any] = ["none", "rope", "alibi", {"kind": "alibi", "rounding": "bfloat16", "scaled": True}]


def build(backend: str, **fields: Any) -> Attention:
    layer = parse(AttentionConfig, {"n_heads": 2, "d_head": 4, "backend": backend, **fields}).build(Dims(D))
    layer = layer.double().eval()
    randomise(layer)
    return layer


def vectors(steps: int = LONG, rows: int = 2) -> Tensor:
    return torch.randn(rows, steps, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64,
                       requires_grad=True)


def spans(steps: int) -> dict[str, Span]:
    """By name, of two rows."""
    begins = torch.zeros(2, steps, dtype=torch.bool)
    begins[0, [0, 3, 140, 141]] = begins[1, 200] = True
    places = torch.arange(steps).flip(0).repeat(2, 1) / 2
    return {"whole": WHOLE, "ragged": Span(count=torch.tensor([steps, 131])), "packed": Span(begins=begins),
            "coordinates": Span(coordinates=places)}


def outcome(layer: Attention, x: Tensor, span: Span) -> list[Tensor]:
    y = layer(x, None, span).y
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("span", spans(1 + 200).keys())
@pytest.mark.parametrize("mask", MASKS)
def test_every_form_is_the_naive_one(mask: str, span: str) -> None:
    x = vectors()
    for position in POSITIONS:
        fields = {"mask": mask, "position": position, "n_kv_heads": 1, "bias": "qkv"}
        wanted = outcome(build("reference", **fields), x, spans(LONG)[span])
        for backend in ("sdpa", "banded"):
            if backend == "banded" and span == "packed" and "global" in mask:
                continue  # refused, see below
            found = outcome(build(backend, **fields), x, spans(LONG)[span])
            for one, other in zip(found, wanted, strict=True):  # rounding of float64, in sums of 300 terms
                assert_close(one, other, rtol=1e-8, atol=1e-9)


def test_first_tokens_of_several_documents_are_not_in_front() -> None:
    layer = build("banded", mask="causal & (window(4) | global(0))")
    with pytest.raises(UnsupportedError, match=r"kernels.attention: the form 'banded' of 'attention' cannot serve this "
                                               r"call: the keys are not in the order of tokens. Those that can: "
                                               r"sdpa, reference."):
        layer(vectors(), None, spans(LONG)["packed"])


@pytest.mark.parametrize("mask", ["causal & window(5)", "causal & (window(4) | global(0, 2))", "window(150)"])
@pytest.mark.parametrize("position", ["rope", "alibi"])
@pytest.mark.parametrize("first", [2, 3, 5, 40])
def test_blocks_go_on_from_what_a_window_keeps(mask: str, position: str, first: int) -> None:
    """After few tokens, too, of which some are a document's first ones and all are still inside the window."""
    x, layer = vectors(), build("banded", mask=mask, position=position)
    whole = build("reference", mask=mask, position=position)(x).y
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            state, found = layer.init_state(2), []
            for piece in x.split([first, 200, LONG - 200 - first], 1):
                out = layer(piece, state)
                state = out.state
                found.append(out.y)
        assert_close(torch.cat(found, 1), whole, rtol=1e-10, atol=1e-11)
    one = build("auto", mask=mask, position=position)
    last = one(x[:, -1:], layer(x[:, :-1], layer.init_state(2)).state, Span(bound=LONG, uniform=True))
    assert_close(last.y, whole[:, -1:], rtol=1e-10, atol=1e-11)


def test_blocks_go_on_from_rows_of_several_lengths_and_documents() -> None:
    """The second row begins another document in its first piece, of which a first token comes in the second."""
    x, layer = vectors(), build("banded", mask="causal & (window(4) | global(0, 2))", position="alibi")
    begins, count = torch.zeros(2, 6, dtype=torch.bool), torch.tensor([1, 6])
    begins[1, 4] = True
    first = build("auto", mask=layer.mask, position="alibi")(x[:, :6], layer.init_state(2), Span(count, begins))
    found = layer(x[:, 6:], first.state).y
    alone = build("reference", mask=layer.mask, position="alibi")
    for row, wanted in enumerate((torch.cat([x[:1, :1], x[:1, 6:]], 1), x[1:, 4:])):
        read = wanted.shape[1] - found.shape[1]
        assert_close(found[row], alone(wanted).y[0, read:], rtol=1e-10, atol=1e-11)


def test_blocks_go_on_from_level_rows() -> None:
    x, layer = vectors(), build("auto", mask="causal", position="alibi", scores={"softcap": 2.0})
    whole = build("reference", mask="causal", position="alibi", scores={"softcap": 2.0})(x).y
    first = layer(x[:, :20], layer.init_state(2), Span(bound=20, uniform=True))
    second = layer(x[:, 20:], first.state, Span(bound=LONG, uniform=True))
    assert_close(torch.cat([first.y, second.y], 1), whole, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_other_dtypes_are_near_float64(dtype: torch.dtype, bound: float) -> None:
    """Relative to the largest entry: some roundings of float32; in bfloat16 scores, weights and sums are rounded."""
    layer = build("banded", mask="causal & window(20)")
    wanted, narrow = layer(vectors()).y, build("banded", mask="causal & window(20)").to(dtype)
    found = narrow(vectors().to(dtype)).y
    assert found.dtype is dtype
    assert ((found.double() - wanted).abs().max() / wanted.abs().max()).item() < bound


def test_weights_are_dropped_by_blocks_too() -> None:
    """Their mean is the whole: over 400 draws of weights near 1/5 the error of a mean is about 1 % of the largest."""
    torch.manual_seed(0)
    layer, x = build("banded", mask="causal & window(5)", scores={"dropout": 0.25}), vectors(ROWS + 9, 1).detach()
    whole = layer(x).y
    layer.train()
    drawn = torch.stack([layer(x).y for _ in range(400)])
    assert not torch.equal(drawn[0], drawn[1])
    assert (drawn.mean(0) - whole).abs().max() < 0.1 * whole.abs().max()
    x.requires_grad_()
    torch.manual_seed(1)
    y = layer(x).y.sum()
    gradient, = torch.autograd.grad(y, x)
    step = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype) * 1e-6
    with torch.no_grad():  # the same draws, so that the difference quotient is the gradient's
        ends = []
        for sign in (1, -1):
            torch.manual_seed(1)
            ends.append(layer(x + sign * step).y.sum())
    assert_close((ends[0] - ends[1]) / 2, (gradient * step).sum(), rtol=1e-5, atol=1e-12)


def test_second_derivatives_go_through_blocks() -> None:
    found = []
    for backend in ("banded", "reference"):
        layer, x = build(backend, mask="causal & window(5)", position="alibi"), vectors(ROWS + 9)
        slope, = torch.autograd.grad(layer(x).y.square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), x)[0])
    assert_close(found[0], found[1], rtol=1e-8, atol=1e-9)


def test_blocks_compile_as_one_graph() -> None:
    layer, x = build("banded", mask="causal & window(5)", position="alibi"), vectors(ROWS + 9)
    compiled = torch.compile(lambda x: layer(x).y, fullgraph=True, backend="aot_eager")
    found, wanted = compiled(x), layer(x).y
    assert_close(found, wanted, rtol=1e-12, atol=1e-13)
    assert_close(torch.autograd.grad(found.square().sum(), x), torch.autograd.grad(wanted.square().sum(), x),
                 rtol=1e-10, atol=1e-12)


def test_neither_masks_nor_biases_of_all_pairs_are_made() -> None:
    """The largest tensor of a window's forward and backward pass grows with the tokens times the window."""
    from weft.laws.bounded_memory import _Allocated

    made = []
    for steps in (1024, 2048):
        layer, x = build("auto", mask="causal & window(16)", position="alibi"), vectors(steps, 1)
        with _Allocated() as total:
            layer(x).y.sum().backward()
        made.append(total.bytes)
    assert made[1] < 2.2 * made[0]


@pytest.mark.parametrize(("fields", "steps", "name", "why"), [
    ({"mask": "causal & window(16)"}, 1024, "banded", "blocks of queries, each with its band of keys"),
    ({"mask": "causal & window(900)"}, 1024, "sdpa", "banded: the mask hides too few keys"),
    ({"mask": "causal & window(16)"}, 100, "sdpa", "banded: too few queries"),
    ({"mask": "causal"}, 1024, "sdpa", "banded: the mask hides too few keys"),
    ({"mask": "causal", "scores": {"softcap": 1.0}}, 1024, "banded", "blocks of queries, each with its band of keys"),
    ({"mask": "bidirectional"}, 1024, "sdpa", "banded: the keys are not in the order of tokens"),
    ({"mask": "causal | prefix"}, 1024, "sdpa", "banded: the mask does not bound later keys"),
])
def test_the_form_follows_the_mask(fields: dict[str, Any], steps: int, name: str, why: str) -> None:
    # In float32 the form in C would come first, where there is one.
    layer, tokens = build("auto", **fields), torch.empty(1, steps, 2, 4, dtype=torch.float64)
    span = WHOLE.resolve(None, tokens)
    call = layer.call(tokens, ReadableKeys(tokens, tokens, Keys.of(span.ticks), None), span)
    form, reason, passed = ATTENTION.choose(call)
    assert form.name == name
    assert why in (reason, *passed)


@pytest.mark.parametrize(("dtype", "gradients", "position", "name"), [
    (torch.float64, True, "alibi", "banded"), (torch.float64, False, "alibi", "sdpa"),
    (torch.float64, True, "rope", "sdpa"),
    (torch.float32, True, {"kind": "alibi", "rounding": "bfloat16"}, "sdpa")])
def test_blocks_train_a_bias_by_distance_in_long_rows(dtype: torch.dtype, gradients: bool, position: Any,
                                                      name: str) -> None:
    for steps, expected in ((max(2 * ROWS, LONG_BIASED + 1), name), (2 * ROWS - 1, "sdpa")):
        layer, tokens = build("auto", mask="causal", position=position), torch.empty(1, steps, 2, 4, dtype=dtype)
        span = WHOLE.resolve(None, tokens)
        with torch.set_grad_enabled(gradients):
            call = layer.call(tokens, ReadableKeys(tokens, tokens, Keys.of(span.ticks), None), span)
            assert ATTENTION.choose(call).form.name == expected


def test_blocks_leave_a_bias_in_bfloat16_to_others() -> None:
    steps = max(2 * ROWS, LONG_BIASED + 1)
    layer, tokens = build("auto", mask="causal", position="alibi"), torch.empty(1, steps, 2, 4, dtype=torch.bfloat16)
    span = WHOLE.resolve(None, tokens)
    call = layer.call(tokens, ReadableKeys(tokens, tokens, Keys.of(span.ticks), None), span)
    rule = ATTENTION.form("banded").worth
    assert rule is not None and rule(call) == "the mask hides too few keys"


@pytest.mark.parametrize("in_place", [False, True])  # buffers are written in place where gradients are off
def test_a_window_with_first_tokens_keeps_as_many_slots(*, in_place: bool) -> None:
    layer = build("auto", mask="causal & (window(4) | global(0, 2))", position="alibi")
    state = layer.init_state(1)
    x = vectors(50, 1)
    for piece in x.split([1, 8, 1, 1, 30, 9], 1):
        with torch.set_grad_enabled(not in_place):
            state = layer(piece, state).state
        assert isinstance(state, RollingState)
        assert (state.keys.shape[2], state.values.shape[2], state.clock.positions.values.shape[1]) == (7, 7, 7)
    kept = layer.project(x, WHOLE.resolve(None, x).ticks)[1][0]
    assert_close(state.keys[0].transpose(0, 1), kept[[0, 1, 2, 48, 49, 46, 47]], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("in_place", [False, True])
def test_first_tokens_are_those_of_the_last_document(*, in_place: bool) -> None:
    layer, x = build("auto", mask="causal & (window(2) | global(0, 1))"), vectors(12, 1)
    begins = torch.zeros(1, 12, dtype=torch.bool)
    begins[0, 5] = True
    whole = layer(x, None, Span(begins=begins)).y
    for cuts in ([12], [4, 8], [5, 1, 1, 1, 4], [6, 6], [1] * 12):
        state, found = layer.init_state(1), []
        for piece, marks in zip(x.split(cuts, 1), begins.split(cuts, 1), strict=True):
            with torch.set_grad_enabled(not in_place):
                out = layer(piece, state, Span(begins=marks))
            state = out.state
            found.append(out.y)
        assert_close(torch.cat(found, 1), whole, rtol=1e-11, atol=1e-12)


def test_a_probe_sees_the_weights_whatever_form_is_named() -> None:
    x = vectors(7)
    for backend in ("auto", "sdpa", "banded"):
        layer = build(backend, mask="causal & window(3)", n_kv_heads=1)
        with probe(layer, "weights") as seen:
            y = layer(x).y
        weights, = seen["weights"]
        assert weights.shape == (2, 2, 7, 7)
        assert_close(weights.sum(-1), torch.ones(2, 2, 7, dtype=torch.float64), rtol=1e-12, atol=0)
        place = torch.arange(7)
        back = place[:, None] - place
        assert weights[..., (back < 0) | (back >= 3)].abs().max() == 0
        values = layer.project(x, WHOLE.resolve(None, x).ticks)[2]
        assert_close(layer.mix(torch.einsum("bhts,bshf->bthf", weights, values.expand(-1, -1, 2, -1))), y, rtol=1e-11,
                     atol=1e-12)
        assert_close(layer(x).y, y, rtol=1e-11, atol=1e-12)


def test_a_probe_sees_the_weights_on_a_memory_and_of_steps() -> None:
    layer = parse(CrossAttentionConfig, {"n_heads": 2}).build(Dims(D)).double().eval()
    assert isinstance(layer, CrossAttention)
    memory = Memory(vectors(5), torch.tensor([5, 2]))
    with probe(layer, "weights") as seen:
        layer(vectors(3), None, Span(memory=memory))
    assert seen["weights"][0].shape == (2, 2, 3, 5)
    assert seen["weights"][0][1, :, :, 2:].abs().max() == 0
    own = build("auto", mask="causal")
    with torch.no_grad(), probe(own, "weights") as steps:
        state = own(vectors(3), own.init_state(2)).state
        own(vectors(1), state)
    assert [weights.shape[2:] for weights in steps["weights"]] == [(3, 3), (1, 4)]


def test_a_form_that_is_forced_comes_before_the_layer_s_own() -> None:
    layer, x = build("sdpa", mask="causal"), vectors(7)
    with forced({"attention": "banded"}), pytest.raises(UnsupportedError, match="the form 'banded' of 'attention'"):
        build("sdpa", mask="bidirectional")(x)
    with forced({"attention": "reference"}):
        assert_close(layer(x).y, build("reference", mask="causal")(x).y, rtol=0, atol=0)


@pytest.mark.parametrize("config", [AttentionConfig, CrossAttentionConfig])
def test_an_unknown_form_is_refused_where_it_stands(config: type[AttentionConfig] | type[CrossAttentionConfig]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(config, {"n_heads": 2, "backend": "spda"}).build(Dims(D, path="mixer"))
    assert caught.value.problems == ("mixer.backend: attention has no form called 'spda'. Did you mean 'sdpa'?",)
    with pytest.raises(ConfigError, match=r"attention has no form called 'flash'\. Did you mean 'sdpa'\?"):
        parse(config, {"n_heads": 2, "backend": "flash"}).build(Dims(D))
