"""Steps as graphs, without a card: a graph of the tests' own, which does its work again at every replay.

While it captures, what reads a value on the host is refused, as CUDA refuses it, and what was written is put back
at the end, since a capture does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from decoding.small_models import MLP, ROPE, decoder, kinds, reseeded
from decoding.test_decoding_tape import BOUND, UNTAPED, follow, layers, made, sessions
from weft.core import compiling
from weft.core.model import LanguageModel, ModelState
from weft.core.span import Span
from weft.decoding import Ending, Sampling, generate, native_calls
from weft.decoding.session import Session
from weft.gpu import graphs
from weft.gpu.graphs import GraphedCall, GraphedStep

READING = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})


class NothingDone(TorchDispatchMode):
    """Refuses operators that read values on the host, and puts back, at the end, what was written in its block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        index = func is torch.ops.aten.index.Tensor and not any(
            each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
        if not READING.isdisjoint(func.tags) and not index:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        if func._schema.is_mutable:
            for each in (*args, *(kwargs or {}).values()):
                if isinstance(each, Tensor):
                    memory = each.untyped_storage()
                    now = torch.empty(0, dtype=torch.uint8).set_(memory)
                    self.before.setdefault(memory.data_ptr(), (now, now.clone()))
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for now, before in self.before.values():
            now.copy_(before)


class Rerun:
    """A graph that runs its work again."""

    made: list[Rerun]

    def __init__(self) -> None:
        self.work: Callable[[], None] | None = None
        self.replays = 0
        Rerun.made.append(self)

    def capture(self, work: Callable[[], None]) -> None:
        with NothingDone():
            work()
        self.work = work

    def replay(self) -> None:
        assert self.work is not None, "captured before"
        self.replays += 1
        self.work()


@pytest.fixture(autouse=True)
def on_a_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a card: checks of values are asynchronous, and nothing is called by its address."""
    Rerun.made = []
    monkeypatch.setattr(graphs, "graph_on", lambda device: Rerun())
    monkeypatch.setattr("weft.decoding.step_tape.graph_on", lambda device: Rerun())
    monkeypatch.setattr(compiling, "compiler_traces", lambda: True)
    monkeypatch.setattr(native_calls, "unavailable", lambda: "as on a card")
    yield


def captured() -> int:
    return sum(each.work is not None for each in Rerun.made)


@pytest.mark.parametrize("name", [*kinds(), *layers()])
def test_a_graph_gives_what_the_model_gives(name: str) -> None:
    graphed, plain = sessions(made(name), 4, 2)
    follow(graphed, plain, 12)
    assert graphed.by_tape == (name not in UNTAPED)
    assert (graphed.without_graph is None) == (name not in UNTAPED), graphed.without_graph
    # A row that enters another regime is read again, so that for some steps only the other row moves.
    assert captured() == {"longrope": 2, "dynamic": 2}.get(name, name not in UNTAPED)
    for path, (wanted, _) in plain.state.tensors().items():
        torch.testing.assert_close(graphed.state.tensors()[path][0], wanted, rtol=BOUND, atol=BOUND)


@pytest.mark.parametrize("name", ["rope", "hybrid", "window", "lstm", "s4d"])
def test_the_state_stays_where_it_is(name: str) -> None:
    """And what was returned of it is not overwritten."""
    session, plain = sessions(made(name), 4, 2)
    follow(session, plain, 4)
    places = [each.data_ptr() for each in session._steps._tape._tensors()]
    follow(session, plain, 3)
    assert places == [each.data_ptr() for each in session._steps._tape._tensors()]
    given = session.state
    before = given.clone()
    follow(session, plain, 3)
    grows = {path for path, (_, spec) in given.tensors().items() if spec.grows is not None}
    own = [torch.equal(tensor, before.tensors()[path][0]) for path, (tensor, _) in given.tensors().items()
           if path.endswith("clock.seen") and path not in grows]
    assert own == [True] * len(own) and own


def compiled_like(model: LanguageModel) -> Callable[[Tensor, ModelState], tuple[Tensor, ModelState]]:
    """What a compiled step computes, not compiled."""
    def step(tokens: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        out = model.hidden(tokens[:, None], state, Span())
        assert out.state is not None
        return model.readout.logits(out.y)[:, -1], out.state

    return step


@pytest.mark.parametrize("name", sorted({*kinds(), *layers()} - UNTAPED - {"longrope"}))
def test_a_whole_step_as_a_graph_gives_what_the_model_gives(name: str) -> None:
    """Each row alone and rows of several lengths: a step reads up to the capacity."""
    _, plain = sessions(made(name), 4, 2)
    _, other = sessions(made(name), 4, 2)
    call, state, generator = GraphedCall(compiled_like(made(name))), other.state, reseeded(4)
    with torch.inference_mode():
        for _ in range(8):
            tokens = torch.randint(11, (2,), generator=generator)
            logits, state = call(tokens, state)
            plain.advance(tokens)
            torch.testing.assert_close(logits.to(plain.logits.dtype), plain.logits, rtol=BOUND, atol=BOUND)
    assert call.obstacle is None and call.captures == 1
    assert next(each for each in Rerun.made if each.work).replays == 8 - graphs.PATIENCE


def test_what_reads_a_value_has_no_graph_and_the_reason_is_told() -> None:
    def step(tokens: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        float(tokens.sum())
        return plain_step(tokens, state)

    plain_step = compiled_like(made("rope"))
    _, session = sessions(made("rope"), 3)
    call, state, tokens = GraphedCall(step), session.state, torch.tensor([1])
    with torch.inference_mode():
        for _ in range(5):
            _, state = call(tokens, state)
    assert call.captures == 0 and "not permitted" in str(call.obstacle)


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.9, top_k=5)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", ["rope", "hybrid", "lstm", "rwkv", "moe", "channel_mix"])
def test_rows_that_end_and_are_replaced_give_the_same_text(name: str, sampling: Sampling,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = made(name), [[1, 2, 3], [4], [5, 6, 7, 8, 9], [2, 2], [7]]
    ending = Ending(tokens=(3,))

    def text() -> Any:
        return generate(model, prompts, max_new_tokens=30, sampling=sampling, ending=ending, batch_size=2)

    found, graphs_made = text(), captured()
    monkeypatch.setattr("weft.decoding.step_tape.graph_on", lambda device: None)
    vars(model).pop("_kept_tape", None)
    assert text() == found and graphs_made >= 1


def test_a_value_in_the_buffer_of_another_is_copied_first() -> None:
    """The two tensors change places at every step."""
    step = GraphedStep(lambda x, a, b: [x + a, b, a], 1, Rerun(), None)
    now = [torch.tensor([1.0]), torch.tensor([2.0])]
    for number in range(4):
        result, *now = step(torch.tensor([10.0]), *now)
        assert float(result) == 10.0 + (1.0, 2.0)[number % 2]
        assert [float(each) for each in now] == ([2.0, 1.0], [1.0, 2.0])[number % 2]


def test_a_longer_context_and_another_batch_get_graphs_of_their_own() -> None:
    model = decoder(ROPE, {**ROPE, "mask": "causal & window(4)"}, MLP, context=400).eval()
    graphed, plain = sessions(model, 220, new=140)
    follow(graphed, plain, 50)
    assert captured() == 2 and graphed.by_tape and graphed.without_graph is None
    for session in (graphed, plain):
        session.select(torch.tensor([0, 0]))
    follow(graphed, plain, 6)
    assert captured() == 3


def test_a_session_by_a_compiled_step_admits_rows_in_place() -> None:
    model = made("rope")
    step: Any = compiled_like(model)
    rows = sessions(model, 4, 2)[1]._lines
    graphed, plain = (Session(model, [line.prompt for line in rows], max_new_tokens=40, plain=True, compiled=each)
                      for each in (step, None))
    follow(graphed, plain, 6)
    for session in (graphed, plain):
        session.retire([1])
        session.admit([1], [rows[0].prompt])
    follow(graphed, plain, 6)
    assert captured() == 1 and graphed.without_graph is None
