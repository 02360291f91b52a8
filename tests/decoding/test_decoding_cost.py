"""What a step of one token does: operators are counted, which a busy machine does not change."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from decoding.small_models import MLP, ROPE, decoder
from weft.core.errors import StateError
from weft.core.span import Span
from weft.decoding import Row, RowSettings, Slots
from weft.decoding.session import Session

WINDOW = {**ROPE, "mask": "causal & window(4)"}


class Calls(TorchDispatchMode):
    """Names of the operators called, and the largest number of entries in a result."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.names[str(func).removeprefix("aten.").split(".")[0]] += 1
        if isinstance(out, torch.Tensor):
            self.largest = max(self.largest, out.numel())
        return out


def step(model: Any, lengths: list[int], steps: int = 1) -> Calls:
    """The operators of the last of ``steps`` steps after prompts of ``lengths``."""
    session = Session(model.eval(), [Row((1,) * length) for length in lengths], max_new_tokens=40, plain=True)
    tokens = torch.ones(len(lengths), dtype=torch.int64)
    for _ in range(steps - 1):
        session.advance(tokens)
    with Calls() as calls:
        session.advance(tokens)
    return calls


@pytest.mark.parametrize("layer", [ROPE, WINDOW], ids=["growing", "rolling"])
def test_a_step_takes_as_many_operators_in_a_long_context(layer: Any) -> None:
    model = decoder(layer, MLP).float()
    assert step(model, [5]).names == step(model, [5], 12).names == step(model, [20]).names


def test_a_step_in_a_window_handles_no_more_numbers_in_a_long_context() -> None:
    model = decoder(WINDOW, MLP).float()
    assert step(model, [5]).largest == step(model, [5], 30).largest


def test_level_rows_need_no_mask_and_write_in_place() -> None:
    names = step(decoder(ROPE, MLP).float(), [6, 6]).names
    assert not {"where", "masked_fill", "masked_fill_", "scatter_", "index_put_", "einsum"} & set(names)
    assert names["copy_"] == 2 * 2  # keys and values of two layers


def test_what_does_not_depend_on_the_layer_is_worked_out_once() -> None:
    one, three = (step(decoder(*[ROPE] * layers, MLP).float(), [6, 3]).names for layers in (1, 3))
    for name in ("cos", "sin", "arange", "lt", "cat", "sub"):
        assert one[name] == three[name]
    assert one["cos"] == 1


def python_calls(rows: int) -> Counter[str]:
    """Names of the Python functions that a plain step of four layers comes to, torch's own among them."""
    model = decoder({"kind": "attention", "n_heads": 2}, MLP).float().eval()
    session = Session(model, [Row((1,) * 6)] * rows, max_new_tokens=40, plain=True)
    session.advance(torch.ones(rows, dtype=torch.int64))
    tokens, state, span = torch.ones(rows, 1, dtype=torch.int64), session.state, Span(bound=8, uniform=True)
    found: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            found[frame.f_code.co_qualname] += 1

    with torch.inference_mode():
        sys.setprofile(count)
        try:
            out = model.hidden(tokens, state, span)
            model.readout.logits(out.y)
        finally:
            sys.setprofile(None)
    return found


@pytest.mark.parametrize("rows", [1, 2])
def test_a_span_is_resolved_once_a_call_whatever_layers_there_are(rows: int) -> None:
    found = python_calls(rows)
    assert found["Layer.forward"] == 7 and found["Span.resolve"] == found["resolve_call"] == 1
    assert found["Layer._require_own"] == 0 and found["Clock.after"] == 1 and found["Dropout.forward"] == 0
    assert found["Operation._first"] == 0, "what forms declare is remembered"
    # Of all calls 22 are those of modules before their `forward`, which is 22 more; the 16 operations take 48 (the
    # call, its record, and its rule); what the step comes to in all layers is worked out in 20. Each of nine products
    # and five norms in C takes one more, its function, without an operator of PyTorch's; each of the two attentions
    # takes three, since its mask is resolved and its arguments change with every token. A recorded step, which is taken
    # from a text's third token on, has all of them in a sequence, without any.
    assert found["product_in_c"] == found["_linear_hindrance"] == 9
    assert found["norm_in_c"] == found["norm_hindrance"] == 5
    assert found["query_in_c"] == 2 and found["OpOverload.__call__"] == found["alone"] == found["_norm_of"] == 0
    assert found["Module.__getattr__"] < 3 and found["Module._call_impl"] == 0
    assert found.total() < 200, "198 with Python 3.11 and torch 2.13"


SOURCES = weft.__path__[0]


def own_calls(blocks: int, *layers: Any, norm: str) -> Counter[str]:
    """Names of Weft's own functions that a plain step of one token comes to."""
    model = decoder(blocks=[{"repeat": blocks, "of": [{"kind": "pre", "layers": list(layers)}]}], norm=norm).float()
    session, token = Session(model.eval(), [Row((1,) * 6)], max_new_tokens=40, plain=True), torch.ones(1).long()
    session.advance(token)
    found: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            found[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        session.advance(token)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize(("blocks", "layers", "norm", "ceiling"), [
    (2, ({"kind": "attention", "n_heads": 2}, MLP), "layernorm", 172),
    (2, ({"kind": "attention", "n_heads": 2}, {"kind": "glu"}), "layernorm", 190),
    (4, (ROPE, {"kind": "glu"}), "rmsnorm", 389)], ids=["mlp", "glu", "llama"])
def test_a_plain_step_comes_to_few_functions(blocks: int, layers: Any, norm: str, ceiling: int) -> None:
    """The ceilings are what is reached, and only fall. The last model had 1,709 while every map of a gated unit was
    asked for each of a hundred methods whether an attribute shadows it."""
    found = own_calls(blocks, *layers, norm=norm)
    assert found.total() <= ceiling, found.most_common(20)


def test_the_choice_of_greedy_tokens_comes_to_few_functions() -> None:
    """Two for each row, which write its token. The ceiling is what is reached, and only falls."""
    found = {}
    for rows in (1, 8):
        slots, calls = Slots(decoder(ROPE, MLP).eval(), rows, capacity=20), Counter[str]()
        slots.admit_all([[1, 2, 3]] * rows, [RowSettings(9, row=row) for row in range(rows)])

        def count(frame: FrameType, event: str, _argument: object, calls: Counter[str] = calls) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
                calls[frame.f_code.co_qualname] += 1

        sys.setprofile(count)
        try:
            slots.step()  # the model has read the prompts
        finally:
            sys.setprofile(None)
        found[rows] = calls.total()
    assert found[8] - found[1] == 2 * 7 and found[8] <= 29, found


def taped(rows: int) -> Session:
    """A session of 4 layers whose steps a tape takes."""
    session = Session(decoder(ROPE, MLP).float().eval(), [Row((1,) * 6)] * rows, max_new_tokens=50)
    for _ in range(6):
        session.advance(torch.ones(rows, dtype=torch.int64))
    assert session.by_tape
    return session


def test_a_row_joins_a_running_batch_in_few_calls() -> None:
    """Most of what is left is the model's own reading of the prompt."""
    session, found = taped(3), Counter[str]()
    session.retire([1])
    session.admit([1], [Row((2,) * 5)])
    session.advance(torch.ones(3, dtype=torch.int64))

    def count(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            found[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        session.retire([1])
        session.admit([1], [Row((2,) * 5)])
    finally:
        sys.setprofile(None)
    assert session.by_tape and found["map_together"] == found["kept_dtypes"] == 0
    assert found.total() < 1000, found.most_common(12)


def test_a_state_that_was_given_out_cannot_be_used_once_rows_have_changed_under_it() -> None:
    for change in (lambda each: each.retire([1]), lambda each: each.admit([1], [Row((2,) * 5)])):
        session = taped(3)
        state = session.state
        change(session)
        assert session.by_tape
        with pytest.raises(StateError, match="an earlier call has consumed this state"):
            session.model.hidden(torch.ones(3, 1, dtype=torch.int64), state)


def test_rows_that_a_tape_takes_are_those_that_states_take() -> None:
    """The same changes with a state given out before each, which leaves them to `weft.core.rows`."""
    ends = []
    for given_out in (False, True):
        session = taped(3)
        for change in (lambda each: each.retire([1]), lambda each: each.admit([1], [Row((2,) * 5)])):
            assert not given_out or session.state.batch() == 3
            change(session)
            session.advance(torch.ones(3, dtype=torch.int64))
        ends.append([session.logits, *(tensor for tensor, _ in session.state.tensors().values())])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
