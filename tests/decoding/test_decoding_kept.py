"""Tapes that are kept with their model: the next text goes on by the last one's, and gets the tokens of the model's own
code whatever was changed in between."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decoding.small_models import MLP, ROPE, VOCAB, decoder, kinds
from weft.core.layer import Pointwise
from weft.core.model import LanguageModel
from weft.decoding import Row, RowSettings, Slots, generate
from weft.decoding.kept_tape import MOST_BYTES, NAME, TapeConditions, kept_tape
from weft.decoding.recording import FunctionRecorder
from weft.decoding.session import Session
from weft.decoding.steps import Steps
from weft.decoding.tape import tape
from weft.linear.linear import shallow
from weft.ops.forms import forced

NEW = 40
PROMPT = (1, 2, 3)
GROUPED = {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "d_head": 4, "position": "rope"}
LEARNED = {"position": {"kind": "learned", "std": 1.0}}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """An entry for each step that is recorded."""
    record, found = Steps._record, list[int]()

    def noted(self: Steps, *args: Any) -> Any:
        found.append(1)
        return record(self, *args)

    monkeypatch.setattr(Steps, "_record", noted)
    yield found


def model_of(*layers: Any, dtype: torch.dtype = torch.float64, **options: Any) -> LanguageModel:
    return decoder(*(layers or (GROUPED, {"kind": "glu", "d_ff": 24})), **options).to(dtype).eval()


def tokens(model: LanguageModel, *prompts: tuple[int, ...], new: int = NEW) -> list[tuple[int, ...]]:
    return [row.tokens for row in generate(model, [list(each) for each in prompts or (PROMPT,)],
                                           max_new_tokens=new).rows]


def plainly(model: LanguageModel, *prompts: tuple[int, ...], new: int = NEW) -> list[tuple[int, ...]]:
    """The same by the model's own code, token by token."""
    slots = Slots(model, len(prompts or (PROMPT,)), capacity=max(map(len, prompts or (PROMPT,))) + new - 1, plain=True)
    slots.admit_all([list(each) for each in prompts or (PROMPT,)],
                    [RowSettings(new, row=row) for row in range(len(prompts or (PROMPT,)))])
    found: list[list[int]] = [[] for _ in prompts or (PROMPT,)]
    while slots.live:
        for each in slots.step():
            found[each.row].append(each.token)
    return [tuple(each) for each in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layers", [(), (ROPE, MLP), ("lstm", MLP), ({"kind": "mamba"},), ({"kind": "s4d"}, MLP),
                                    ({**ROPE, "mask": "causal & window(4)"}, MLP)])
def test_the_next_text_goes_on_by_the_tape_of_the_last(layers: tuple[Any, ...], dtype: torch.dtype,
                                                       recorded: list[int]) -> None:
    model, fresh = model_of(*layers, dtype=dtype), model_of(*layers, dtype=dtype)
    tokens(model)
    assert len(recorded) == 1
    for prompt in (PROMPT, (7, 7), (9,)):  # shorter ones have room in its state too
        found = tokens(model, prompt)
        assert len(recorded) == 1
        vars(fresh).pop(NAME, None)
        assert found == tokens(fresh, prompt)
        recorded.pop()
    assert len(tokens(model, (1,) * 9)[0]) == NEW and len(recorded) == 2, "a longer one has not"


@pytest.mark.parametrize("name", ["hybrid", "moe", "rwkv", "longrope", "alibi", "channel_mix", "dynamic"])
def test_every_kind_of_state_is_copied_whole(name: str) -> None:
    model = copy.deepcopy(kinds()[name])
    tokens(model, (1, 2, 3, 4), (5,))
    for prompts in (((6, 5), (3, 3, 3)), ((2,), (1,))):
        assert tokens(model, *prompts) == plainly(model, *prompts)


def changed_in_place(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.7).add_(0.1)


def changed_by_data(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(1.7).add_(0.1)


def other_data(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.7 + 0.1


def replaced(model: Any) -> None:
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach() * 1.7 + 0.1))


def loaded(model: Any) -> None:
    model.load_state_dict({name: each * 1.7 for name, each in model.state_dict().items()})


def assigned(model: Any) -> None:
    model.load_state_dict({name: each * 1.7 for name, each in model.state_dict().items()}, assign=True)


def narrower(model: Any) -> None:
    model.to(torch.bfloat16)  # in place: the parameters stay the same objects with other data


def another_part(model: Any) -> None:
    model.stack.layers[1].layers[1] = copy.deepcopy(model.stack.layers[0].layers[1])


CHANGES: list[Callable[[Any], None]] = [changed_in_place, changed_by_data, other_data, replaced, loaded, assigned,
                                        narrower, another_part]


@pytest.mark.parametrize("options", [{}, LEARNED], ids=["rope", "learned"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_was_changed_is_decoded_as_it_is_now(change: Callable[[Any], None],
                                                          options: dict[str, Any]) -> None:
    for dtype in (torch.float32, torch.float64):
        model = model_of(dtype=dtype, **options)
        before = tokens(model)
        change(model)
        found = tokens(model)
        assert found == tokens(copy.deepcopy(model))
        assert (found != before) or change is narrower, "the change changes tokens"


def test_only_numbers_that_are_changed_where_they_lie_leave_a_tape_valid(recorded: list[int]) -> None:
    left = list[Tensor]()

    def moved(model: Any) -> None:
        for parameter in model.parameters():
            left.append(parameter.data)  # freed, its memory would have other numbers, which the first step sees
            parameter.data = parameter.data.clone()

    model = model_of(dtype=torch.float32)
    tokens(model)
    for change, new in ((changed_in_place, 0), (other_data, 1), (moved, 1), (replaced, 1), (another_part, 1)):
        recorded.clear()
        change(model)
        tokens(model)
        assert len(recorded) == new
        tokens(model)
        assert len(recorded) == new


class Scaling(Pointwise):
    """Has a setting that is no attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = SimpleNamespace(factor=2.0)

    def each(self, x: Tensor) -> Tensor:
        return x * self.settings.factor


def test_what_no_comparison_of_attributes_sees_is_seen_by_the_first_step(recorded: list[int]) -> None:
    model: Any = model_of(ROPE, MLP)
    model.stack.layers[0].layers[1] = Scaling()
    before = tokens(model)
    model.stack.layers[0].layers[1].settings.factor = -3.0
    found = tokens(model)
    assert found == plainly(model) != before and len(recorded) == 2
    assert tokens(model) == found and len(recorded) == 2


def test_what_a_changed_number_comes_to_only_later_is_seen_before() -> None:
    """Constants that the tape computed once are computed again: a table's line that the first steps do not read."""
    model = model_of(dtype=torch.float64, **LEARNED)
    place: Any = next(each for name, each in model.named_parameters() if "position" in name)
    before = tokens(model)
    place.data[len(PROMPT) + 20 :] *= -3
    found = tokens(model)
    assert found == plainly(model) and found[0][:15] == before[0][:15] and found != before


def test_a_window_that_was_changed_is_seen_before_it_matters(recorded: list[int]) -> None:
    """A wider window gives the same first steps."""
    one, other = (model_of({**ROPE, "mask": f"causal & window({size})"}, MLP) for size in (20, 30))
    tokens(one)
    for own, wider in zip(one.modules(), other.modules(), strict=True):
        if hasattr(own, "mask"):
            own.mask = wider.mask
    recorded.clear()
    surroundings = TapeConditions(one)
    assert surroundings == TapeConditions(one)
    tokens(one)
    assert len(recorded) == 1


@pytest.mark.parametrize("which", ["threads", "forms", "dtype"])
def test_a_setting_of_the_process_makes_a_tape_anew(which: str, recorded: list[int]) -> None:
    model, threads = model_of(dtype=torch.float32), torch.get_num_threads()
    tokens(model)
    try:
        if which == "threads":
            torch.set_num_threads(threads + 1)
        if which == "dtype":
            torch.set_default_dtype(torch.float64)
        with forced({"attention": "reference"} if which == "forms" else {}):
            tokens(model)
            assert len(recorded) == 2
            tokens(model)
            assert len(recorded) == 2
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)


def test_copies_and_pickles_are_without_it() -> None:
    model = model_of(dtype=torch.float32)
    tokens(model)
    assert kept_tape(model)._kept is not None
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert kept_tape(twin)._kept is None
    assert NAME not in "".join(model.state_dict())


def test_copies_that_share_parts_have_a_tape_each(recorded: list[int]) -> None:
    model = model_of(dtype=torch.float32)
    tokens(model)
    twin = shallow(model)
    for _ in range(3):
        assert tokens(model, (5, 6)) == tokens(twin, (5, 6))
    assert len(recorded) == 2


def test_sessions_at_once_have_tapes_of_their_own() -> None:
    model = model_of(dtype=torch.float32)
    tokens(model, (1,) * 6)
    sessions = [Session(model, [Row(prompt)], max_new_tokens=NEW) for prompt in ((1, 2), (3, 4), (5, 6))]
    lines: list[list[int]] = [[] for _ in sessions]
    for _ in range(NEW):
        for session, line in zip(sessions, lines, strict=True):
            line.append(int(session.likeliest({0: 0})[0]))
            if len(line) < NEW:
                session.advance(torch.tensor(line[-1:]))
    assert all(session.by_tape for session in sessions)
    assert len({id(session._steps._tape) for session in sessions}) == 3
    assert [tuple(line) for line in lines] == [plainly(model, prompt)[0] for prompt in ((1, 2), (3, 4), (5, 6))]


def test_threads_at_once_have_tapes_of_their_own() -> None:
    model = model_of(dtype=torch.float32)
    prompts = [(1 + place, 2) for place in range(4)]
    wanted = [plainly(model, prompt)[0] for prompt in prompts]
    found: list[list[tuple[int, ...]]] = [[] for _ in prompts]

    def run(place: int) -> None:
        for _ in range(3):
            found[place] += tokens(model, prompts[place])

    running = [threading.Thread(target=run, args=(place,)) for place in range(4)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    assert found == [[each] * 3 for each in wanted]


def test_a_state_that_was_given_out_keeps_its_numbers() -> None:
    model = model_of(dtype=torch.float32)
    slots = Slots(model, 1, capacity=60)
    slots.admit([1, 2, 3], RowSettings(NEW))
    for _ in range(NEW - 1):
        slots.step()
    begun = slots.leave(0)
    assert begun is not None
    held = {path: tensor.clone() for path, (tensor, _) in begun.state.tensors().items()}
    slots.close()
    tokens(model, (9, 9, 9), new=50)
    assert all(torch.equal(tensor, held[path]) for path, (tensor, _) in begun.state.tensors().items())


def test_large_states_are_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(dtype=torch.float32)
    tokens(model)
    kept = kept_tape(model)._kept
    assert kept is not None and kept[0].nbytes() <= MOST_BYTES
    bound = kept[0].nbytes()
    for most, there in ((bound, True), (bound - 1, False)):
        model = model_of(dtype=torch.float32)
        monkeypatch.setattr("weft.decoding.kept_tape.MOST_BYTES", most)
        tokens(model)
        assert (kept_tape(model)._kept is not None) is there


def test_a_text_that_is_left_unread_leaves_its_tape(recorded: list[int]) -> None:
    from weft.decoding import stream

    model = model_of(dtype=torch.float32)
    running = stream(model, [list(PROMPT)], max_new_tokens=NEW)
    for _ in range(NEW // 2):
        next(running)
    running.close()  # type: ignore[attr-defined]
    assert tokens(model) == plainly(model) and len(recorded) == 1


def test_the_vocabulary_is_checked_by_a_kept_tape_too() -> None:
    model = model_of(dtype=torch.float32)
    tokens(model)
    session = Session(model, [Row(PROMPT)], max_new_tokens=NEW)
    with pytest.raises(Exception, match=r"[Ii]ndex|vocabulary"):
        session.advance(torch.tensor([VOCAB]))


def test_what_was_computed_once_is_computed_again_and_compared() -> None:
    weight, other, x = torch.ones(3), torch.arange(3.0), torch.ones(3)

    def step(x: Tensor) -> Tensor:
        return x * weight.exp() + other.view(3, 1)[:, 0]

    with FunctionRecorder() as recorder:
        y = step(x)
    play = tape(recorder.recording, [x], [y], [])
    assert play.sources.unchanged()
    other[0] = 7  # read at every step, through a view
    assert play.sources.unchanged() and torch.equal(play(x)[0], step(x))
    weight.data[0] = 7
    assert not play.sources.unchanged()
    weight.data[0] = 1
    assert play.sources.unchanged()
    other.data = other.clone()
    assert not play.sources.unchanged()
