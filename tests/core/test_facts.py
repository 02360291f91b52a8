"""Facts of tokens: kept with the state, looked up by order, the same however a row is cut, padded or packed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from weft.core.config import parse_part
from weft.core.errors import InputError
from weft.core.layer import Layer
from weft.core.model import EncoderInputs, ModelState
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.core.state import restore, state_arrays
from weft.decoding import Row, generate
from weft.decoding.steps import Steps
from weft.laws import LAWS, encoder_subject, examine, examine_long, layer_subject, model_subject
from weft.masks import parse_mask
from weft.models.decoder import Decoder, DecoderConfig

MASKS = ["causal & same_type", "causal & (window(3) | globals)", "causal & window(4) & same_type",
         "causal & (same_type | globals)", "causal & (window(3) | global(0)) & same_type"]
QUICK = tuple(law for law in LAWS if law != "compile")
"""The laws but for the one that takes seconds for each model."""


def attention(mask: str) -> Layer:
    torch.manual_seed(0)
    config = {"kind": "attention", "n_heads": 2, "mask": mask, "position": "alibi"}
    layer = parse_part(("mixer",), config).build(Dims(8))
    assert isinstance(layer, Layer)
    return layer.double()


def model(mask: str) -> Decoder:
    torch.manual_seed(0)
    blocks = [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "mask": mask}, "gru"]},
              {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "mask": "causal & window(5)"}]}]
    return DecoderConfig.model_validate({"vocab_size": 11, "context": 32, "d_model": 8, "blocks": blocks}
                                        ).build().double().eval()


@pytest.mark.parametrize("mask", MASKS)
def test_laws_hold(mask: str) -> None:
    report = examine(layer_subject(mask, attention(mask), 8), laws=QUICK)
    assert report.holds, "\n".join(map(str, report.broken()[:10]))
    report = examine_long(layer_subject(mask, attention(mask), 8), 386)
    assert report.holds, "\n".join(map(str, report.broken()[:10]))


@pytest.mark.parametrize("mask", MASKS[:3])
def test_laws_hold_in_a_model(mask: str) -> None:
    report = examine(model_subject(mask, model(mask), bound=1e-9), laws=QUICK)
    assert report.holds, "\n".join(map(str, report.broken()[:10]))


def test_a_model_that_reads_both_facts_compiles_whole() -> None:
    mask = "causal & (window(3) | globals) & same_type"
    report = examine(model_subject(mask, model(mask), bound=1e-9), laws=("compile",))
    assert report.findings and report.holds, "\n".join(map(str, report.broken()))


def test_a_bounded_reach_keeps_a_bounded_history() -> None:
    def history(mask: str, capacity: int | None) -> Any:
        state = attention(mask).init_state(2, capacity=capacity)
        return {path: (tuple(tensor.shape), spec.grows) for path, (tensor, spec) in state.tensors().items()
                if "facts" in path}

    assert history("causal & window(4) & same_type", None) == {"clock.facts.values": ((2, 4, 1), None)}
    assert history("causal & same_type", 20) == {"clock.facts.values": ((2, 20, 1), 1)}
    assert history("causal & (same_type | globals)", None) == {"clock.facts.values": ((2, 0, 2), 1)}
    assert history("causal & window(4)", None) == {}
    assert history("causal & (window(3) | global(0)) & same_type", None) == {"clock.facts.values": ((2, 0, 1), 1)}
    for first, second in ((3, 5), (5, 3)):  # the farthest reach of any layer
        blocks = [{"kind": "plain", "layers": [{"kind": "attention", "n_heads": 2,
                                                "mask": f"causal & window({size}) & same_type"}]}
                  for size in (first, second)]
        facts = DecoderConfig.model_validate({"vocab_size": 11, "d_model": 8, "blocks": blocks}
                                             ).build().init_state(1).clock.facts
        assert facts is not None and facts.tensors()["values"][0].shape == (1, 5, 1)
    assert model("causal & same_type").init_state(1).clock.facts is not None


@pytest.mark.parametrize("gradients", [True, False])
def test_a_growing_history_grows_to_the_bound_as_positions_do(gradients: bool) -> None:
    """So that steps up to the same bound have tensors of the same shapes and can be recorded."""
    config = {"kind": "attention", "n_heads": 2, "mask": "causal & same_type", "position": "alibi"}
    layer: Any = parse_part(("mixer",), config).build(Dims(8))
    state, sizes = layer.init_state(1), []
    with torch.set_grad_enabled(gradients):
        for bound in (8, 8, 8, 16):
            state = layer(torch.zeros(1, 1, 8), state, Span(bound=bound)).state
            sizes.append([tensor.shape[1] for path, (tensor, _) in state.tensors().items()
                          if path in ("clock.facts.values", "clock.positions.values")])
    assert sizes == [[8, 8]] * 3 + [[16, 16]]


def test_steps_are_taken_by_tape_where_an_earlier_bound_made_room() -> None:
    """The state has no capacity, so its buffers are as long as the largest bound so far."""
    one = model("causal & same_type")

    def work(tokens: Tensor, state: ModelState, span: Span) -> tuple[Tensor, ModelState]:
        out = one(tokens[:, None], state, span)
        assert out.state is not None
        return out.y[:, -1], out.state

    tokens = torch.randint(11, (1, 10))
    with torch.inference_mode():
        first = one(tokens[:, :2], one.init_state(1), Span(bound=64)).state
        assert first is not None
        steps = Steps(work, first, 64, plain=False, model=one)
        found = [steps.take(tokens[:, t], None, t + 1, uniform=True) for t in range(2, 10)]
        assert steps.by_tape
        torch.testing.assert_close(torch.stack(found, 1), one(tokens).y[:, 2:], rtol=0, atol=1e-12)


def by_hand(layer: Any, x: Tensor, allowed: list[list[bool]]) -> Tensor:
    """Attention of one row without positions, head by head and query by query."""
    size = layer.sizes.d_head
    q, k, v = layer.qkv(x[0]).split(layer.sizes.split(), -1)
    heads = []
    for h in range(2):
        part = slice(h * size, (h + 1) * size)
        rows = []
        for t in range(x.shape[1]):
            seen = [s for s in range(x.shape[1]) if allowed[t][s]]
            scores = torch.stack([q[t, part] @ k[s, part] / size ** 0.5 for s in seen])
            rows.append(sum(w * v[s, part] for w, s in zip(scores.softmax(0), seen, strict=True)))
        heads.append(torch.stack(rows))
    return layer.output(torch.cat(heads, -1))


@pytest.mark.parametrize("pieces", [[7], [1] * 7, [3, 0, 2, 2]])
def test_global_tokens_given_by_row_and_tokens_of_one_type(pieces: list[int]) -> None:
    torch.manual_seed(0)
    config = {"kind": "attention", "n_heads": 2, "mask": "causal & ((window(2) & same_type) | globals)"}
    layer: Any = parse_part(("mixer",), config).build(Dims(8)).double()
    x = torch.randn(1, 7, 8, dtype=torch.float64)
    types, marked = torch.tensor([[0, 2, 2, 0, 0, 2, 2]]), torch.tensor([[False, False, True] + [False] * 4])
    state, outs, at = layer.init_state(1), [], 0
    for size in pieces:
        facts = {"types": types[:, at:at + size], "globals": marked[:, at:at + size]}
        out = layer(x[:, at:at + size], state, Span(facts=facts))
        state, at = out.state, at + size
        outs.append(out.y)
    near = [[t - 2 < s <= t and types[0, s] == types[0, t] for s in range(7)] for t in range(7)]
    allowed = [[s <= t and bool(near[t][s] or marked[0, s] or marked[0, t]) for s in range(7)] for t in range(7)]
    torch.testing.assert_close(torch.cat(outs, 1)[0], by_hand(layer, x, allowed), rtol=0, atol=1e-14)
    whole = layer(x, None, Span(facts={"types": types, "globals": marked})).y
    torch.testing.assert_close(torch.cat(outs, 1), whole, rtol=0, atol=1e-14)


def test_what_is_not_given_is_zero_and_later_calls_see_what_earlier_ones_gave() -> None:
    layer, x = attention("causal & same_type"), torch.randn(1, 4, 8, dtype=torch.float64)
    ones = torch.tensor([[1, 1, 0, 0]])
    wanted = layer(x, None, Span(facts={"types": ones})).y
    first = layer(x[:, :2], layer.init_state(1), Span(facts={"types": ones[:, :2]}))
    second = layer(x[:, 2:], first.state)
    torch.testing.assert_close(second.y, wanted[:, 2:], rtol=0, atol=1e-14)
    assert torch.equal(layer(x).y, layer(x, None, Span(facts={"types": torch.full((1, 4), 3)})).y)


def test_a_history_is_saved_and_selected_with_its_rows() -> None:
    one, x = model("causal & same_type"), torch.randint(11, (2, 6))
    types = torch.tensor([[0, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 1]])
    whole = one(x, None, Span(facts={"types": types})).y
    with torch.no_grad():
        state = one(x[:, :4], one.init_state(2), Span(facts={"types": types[:, :4]})).state
        kept = restore(one.init_state(2), state_arrays(state.select([1, 0])))  # type: ignore[union-attr]
        found = one(x[[1, 0], 4:], kept, Span(facts={"types": types[[1, 0], 4:]})).y
    torch.testing.assert_close(found, whole[[1, 0], 4:], rtol=0, atol=1e-12)


def test_decoding_goes_on_as_the_whole_row_says() -> None:
    one, prompt = model("causal & (window(2) | globals)"), [1, 2, 3]
    found = generate(one, [Row(prompt)], max_new_tokens=40).rows[0].tokens
    with torch.no_grad():
        logits = one(torch.tensor([[*prompt, *found]])).y[0]
    assert list(found) == logits[len(prompt) - 1:-1].argmax(-1).tolist()


def test_an_encoder_s_masks_read_its_inputs() -> None:
    torch.manual_seed(0)
    block = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2,
                                        "mask": "symmetric_window(1, 1) & same_type | globals"}]}
    config = {"kind": "encoder", "vocab_size": 11, "d_model": 8, "blocks": [block, block]}
    one: Any = parse_part(("encoder",), config).build(None)
    one = one.double().eval()
    assert one.reads() == {"tokens": 11, "types": 2, "globals_": 2}
    subject = encoder_subject("globals", one)
    report = examine(subject, laws=("ragged", "packed", "inputs"))
    assert report.holds, "\n".join(map(str, report.broken()))
    tokens = torch.randint(11, (1, 8))
    far = tokens.clone()
    far[0, 7] = (far[0, 7] + 1) % 11
    marked = torch.zeros(1, 8, dtype=torch.bool)
    marked[0, 7] = True
    for given, seen in ((None, False), (marked, True)):
        found, other = (one.vectors(EncoderInputs(tokens=each, globals_=given)).y[0, 0] for each in (tokens, far))
        assert torch.equal(found, other) != seen


def test_masks_say_what_they_read() -> None:
    assert parse_mask("causal & window(3)").reads() == frozenset()
    assert parse_mask("per_head(same_type, ~globals) & causal").reads() == {"types", "globals"}
    assert parse_mask("causal & same_type").causal() and not parse_mask("same_type | causal").causal()
    assert parse_mask("causal & (window(2) | globals)").reach() is None


def test_a_fact_that_nothing_reads_and_one_of_another_shape_are_refused() -> None:
    one, x = model("causal & same_type"), torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(InputError, match=r"^span.facts: no part of this model reads the fact 'type'. Did you mean "
                                         r"'types'\?$"):
        one(x, None, Span(facts={"type": x}))
    with pytest.raises(InputError, match=r"^span.facts: no part of this model reads the fact 'types'. Its masks read "
                                         r"none.$"):
        model("causal")(x, None, Span(facts={"types": x}))
    with pytest.raises(InputError, match=r"reads the fact 'a'"):
        attention("causal & same_type")(torch.zeros(1, 3, 8, dtype=torch.float64), None, Span(facts={"a": x}))
    with pytest.raises(InputError, match=r"^span.facts.types: torch.int64 of shape \(1, 2\) for 1 rows of 3 tokens. "
                                         r"Give whole numbers or booleans of shape \(1, 3\).$"):
        one(x, None, Span(facts={"types": x[:, :2]}))
    with pytest.raises(InputError, match=r"^span.facts.types: torch.float32 of shape \(1, 3\)"):
        one(x, None, Span(facts={"types": x.float()}))
