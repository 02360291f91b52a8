"""Steps by tape against steps through the model's own code."""

from __future__ import annotations

import copy
import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decoding.small_models import MLP, ROPE, VOCAB, decoder, kinds, reseeded
from decoding.test_decoding_cost import Calls
from weft.core.declarations import Trait
from weft.core.errors import UserError
from weft.core.layer import Pointwise, traits_of
from weft.core.model import LanguageModel
from weft.core.part_config import Dims, PartConfig
from weft.core.registry import REGISTRY
from weft.decoding import Row, generate
from weft.decoding.recording import FunctionRecorder
from weft.decoding.session import Session
from weft.decoding.tape import ChangedError, tape
from weft.decoding.tape_sources import same_bits

BOUND = 1e-10
"""Float64, and logits of about one: a tape reads keys that are not there yet, which masks hide, and may so sum in
another order."""
UNTAPED = {"moe 3", "dynamic", *(f"ngram-{index}" for index in range(9))}
"""Where operations depend on values: how many tokens an expert has, where it is configured to count them ("grouped");
which contexts were counted; and where rows are run again at every step."""
NEW = 40


def plain_data(part: PartConfig) -> dict[str, Any]:
    return {**part.model_dump(mode="json", exclude_unset=True), "kind": part.kind}


@cache
def layers() -> dict[str, list[Any]]:
    """The layers of decoders with every registered mixer and feed-forward that read what they write."""
    found = {}
    for part in REGISTRY.parts("mixer"):
        found |= {f"{part.kind} {index}": [*map(plain_data, filter(None, (example.giver(), example))), MLP]
                  for index, example in enumerate(part.examples())
                  if part.kind != "cross_attention" and Trait.BIDIRECTIONAL not in traits_of(example.build(Dims(8)))}
    for part in REGISTRY.parts("feedforward"):
        found |= {f"{part.kind} {index}": [ROPE, plain_data(example)] for index, example in enumerate(part.examples())}
    return found


@cache
def made(name: str) -> LanguageModel:
    """A model of one kind, or a decoder of `layers`; built when it is first needed, for all files are collected by
    every process and most tests are run by another."""
    return (decoder(*layers()[name]) if name in layers() else kinds()[name]).eval()


def sessions(model: LanguageModel, *lengths: int, new: int = NEW) -> tuple[Session, Session]:
    """The same rows, by tape where that can be, and plainly."""
    generator = reseeded(3)
    rows = [Row(tuple(torch.randint(VOCAB, (length,), generator=generator).tolist()),
                (1, 2, 3)[:length] if model.takes_source else None) for length in lengths]
    taped, plain = (Session(model, rows, max_new_tokens=new, plain=plain) for plain in (False, True))
    return taped, plain


def follow(taped: Session, plain: Session, steps: int, moving: Tensor | None = None) -> None:
    """The same tokens for both, and from both the same logits."""
    generator = reseeded(4)
    for _ in range(steps):
        tokens = torch.randint(VOCAB, (plain.logits.shape[0],), generator=generator)
        taped.advance(tokens, moving)
        plain.advance(tokens, moving)
        rows = slice(None) if moving is None else moving
        torch.testing.assert_close(taped.logits[rows], plain.logits[rows], rtol=BOUND, atol=BOUND)


@pytest.mark.parametrize("name", [*kinds(), *layers()])
def test_a_tape_gives_what_the_model_gives(name: str) -> None:
    taped, plain = sessions(made(name), 4, 2)
    follow(taped, plain, 12)
    assert taped.by_tape == (name not in UNTAPED) and not plain.by_tape
    for path, (wanted, _) in plain.state.tensors().items():
        torch.testing.assert_close(taped.state.tensors()[path][0], wanted, rtol=BOUND, atol=BOUND)


def test_a_longer_context_gets_a_longer_tape() -> None:
    model = decoder(ROPE, {**ROPE, "mask": "causal & window(4)"}, MLP, context=400).eval()
    taped, plain = sessions(model, 240, new=120)
    follow(taped, plain, 12)
    first = taped._steps._tape
    follow(taped, plain, 30)
    assert taped.by_tape and taped._steps._tape is not first


def test_rows_that_stand_still_stand_still() -> None:
    taped, plain = sessions(made("hybrid"), 5, 3, 4, new=60)
    follow(taped, plain, 6)
    follow(taped, plain, 6, torch.tensor([True, False, True]))
    assert taped.by_tape
    for session in (taped, plain):
        session.select(torch.tensor([2, 1]))
    assert not taped.by_tape
    follow(taped, plain, 7)
    assert taped.by_tape


def test_rows_of_every_length_equal_the_row_alone() -> None:
    model = made("hybrid")
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    together = generate(model, prompts, max_new_tokens=NEW).rows
    for prompt, row in zip(prompts, together, strict=True):
        tokens = list(prompt)
        for _ in range(NEW):
            tokens.append(int(model(torch.tensor([tokens])).y[0, -1].argmax()))
        assert list(row.tokens) == tokens[len(prompt):]


def test_a_tape_has_fewer_operators_and_none_for_every_layer_twice() -> None:
    model = decoder(ROPE, ROPE, ROPE, MLP).float().eval()
    taped, plain = sessions(model, 6)
    follow_counts = []
    for session in (taped, plain):
        for _ in range(7):
            session.advance(torch.tensor([1]))
        with Calls() as calls:
            session.advance(torch.tensor([1]))
        follow_counts.append(calls.names)
    by_tape, plainly = follow_counts
    # Of 226 operators 30 go (torch 2.13); the model's own step has none of dropout and no casts of norms.
    assert taped.by_tape and by_tape.total() < 0.9 * plainly.total()
    assert by_tape["cos"] == 1 and by_tape["linear"] == plainly["linear"]
    assert not {"arange", "slice", "dropout", "detach"} & set(by_tape)


def test_what_listens_to_a_part_hears_every_step() -> None:
    model, heard = copy.deepcopy(made("rope")), list[int]()
    model.register_forward_hook(lambda *_: heard.append(1))
    model.stack.register_forward_hook(lambda *_: heard.append(2))  # type: ignore[union-attr]
    taped, plain = sessions(model, 3)
    heard.clear()
    follow(taped, plain, 8)
    assert not taped.by_tape and heard.count(2) == 16


class Counting(Pointwise):
    """Breaks the law: it remembers how often it was called, where no state tells."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def each(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Reading(Pointwise):
    """Reads a tensor to choose."""

    def each(self, x: Tensor) -> Tensor:
        return x * 2 if float(x.sum()) > 0 else x


@pytest.mark.parametrize("layer", [Counting(), Reading()], ids=["hidden counter", "reads"])
def test_a_part_without_law_is_found_out(layer: nn.Module) -> None:
    model = copy.deepcopy(made("rope"))
    model.stack.layers[0].layers[1] = layer  # type: ignore[index, union-attr]
    taped, _ = sessions(model, 3)
    for _ in range(12):
        taped.advance(torch.tensor([1]))
    assert not taped.by_tape and ("differed" if isinstance(layer, Counting) else "value") in str(taped.without_graph)


def recorded(function: Any, *tensors: Tensor) -> FunctionRecorder:
    with FunctionRecorder() as recorder:
        function(*tensors)
    return recorder


VALUES_READ: dict[str, Any] = {
    "item": lambda x: x.sum().item(), "tolist": lambda x: x.tolist(), "numpy": lambda x: x.numpy(),
    "int": lambda x: int(x[0]), "float": lambda x: float(x[0]), "equal": lambda x: torch.equal(x, x + 1),
    "a slice": lambda x: x[: x.argmax()], "an index": lambda x: x[x.argmax()],
    "a number of an operator": lambda x: torch.add(x, x, alpha=x[0]),
    "one_hot without classes": lambda x: torch.nn.functional.one_hot(x.long()),
    "nonzero": lambda x: x.nonzero(), "argwhere": lambda x: torch.argwhere(x), "where": lambda x: torch.where(x > 1),
    "masked_select": lambda x: x.masked_select(x > 1), "a mask": lambda x: x[x > 1],
    "a mask of bytes": lambda x: x[(x > 1).to(torch.uint8)], "a mask among indices": lambda x: x[None][:, x > 1],
    "index_put of a mask's": lambda x: x.index_put((x > 1,), x[x > 1]),
    "unique": lambda x: torch.unique(x), "unique_consecutive": lambda x: torch.unique_consecutive(x),
    "bincount": lambda x: torch.bincount(x.long()), "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "repeats": lambda x: torch.repeat_interleave(x.long()), "to_sparse": lambda x: x.to_sparse(),
    "within an operator of autograd": lambda x: Selecting.apply(x),
}


class Selecting(torch.autograd.Function):
    """Its operators are none of torch's functions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.where(x > 1)[0]


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", VALUES_READ)
def test_what_depends_on_values_is_an_obstacle(name: str, mode: Any) -> None:
    with mode():
        assert recorded(VALUES_READ[name], torch.tensor([1.0, 2.0])).obstacle


@pytest.mark.parametrize("function", [
    lambda x: x[torch.tensor([1, 0])], lambda x: torch.where(x > 1, x, 0.0), lambda x: x.masked_fill(x > 1, 0.0),
    lambda x: torch.nn.functional.softmax(x, -1), lambda x: x.nonzero_static(size=1), lambda x: x.sort(),
    lambda x: x.repeat_interleave(2), lambda x: x.index_put((x > 1,), x.new_zeros(()))])
@torch.inference_mode()
def test_what_has_the_same_shape_for_any_values_is_none(function: Any) -> None:
    assert recorded(function, torch.tensor([1.0, 2.0])).obstacle is None


class Bounding(Pointwise):
    """Adds 9 for every feature above 2, few of which there are: `torch.where` of one argument tells how many."""

    def each(self, x: Tensor) -> Tensor:
        return x + 9 * len(torch.where(x > 2)[0])


def test_a_part_that_reads_by_where_is_decoded_as_it_is() -> None:
    model = copy.deepcopy(made("rope"))
    model.stack.layers[0].layers[1] = Bounding()  # type: ignore[index, union-attr]
    taped, plain = sessions(model, 3, new=60)
    follow(taped, plain, 50)
    assert not taped.by_tape


def test_a_tape_keeps_the_order_of_reads_and_writes() -> None:
    buffer, weight, x = torch.zeros(3), torch.arange(3.0), torch.ones(3)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        before = buffer[:2].sum()
        buffer[:2].add_((x * weight)[:2])
        part = buffer.chunk(3)
        part[0].copy_(x[:1])
        return before, buffer[:2].sum(), torch.ones(2).mul_(x[0])

    with FunctionRecorder() as recorder:
        given = step(x)
    play = tape(recorder.recording, [x], given, [buffer])
    for value in (2.0, 3.0):
        x, start = torch.full((3,), value), buffer.clone()
        found = play(x)
        after = buffer.clone()
        buffer.copy_(start)
        assert all(torch.equal(a, b) for a, b in zip(found, step(x), strict=True))
        assert torch.equal(buffer, after)


def test_a_check_that_fails_later_is_told() -> None:
    x = torch.ones(2)
    with FunctionRecorder() as recorder:
        assert bool((x > 0).all())
        y = x + 1
    play = tape(recorder.recording, [x], [y], [])
    assert torch.equal(play(torch.full((2,), 2.0))[0], torch.full((2,), 3.0))
    with pytest.raises(ChangedError):
        play(-x)


def test_a_token_outside_the_vocabulary_is_refused_by_a_tape_too() -> None:
    taped, _ = sessions(made("rope"), 3)
    for _ in range(8):
        taped.advance(torch.tensor([1]))
    assert taped.by_tape
    with pytest.raises((IndexError, UserError)):
        taped.advance(torch.tensor([VOCAB]))


def test_same_bits_tells_zeros_and_kinds_of_nan_apart() -> None:
    """A replay is to give the very numbers of an ordinary step: NaN equals the same NaN, and 0 is not -0."""
    x = torch.tensor([0.0, 1.0, math.nan, 3.0], dtype=torch.bfloat16)
    assert same_bits(x, x.clone())
    assert not same_bits(x, torch.tensor([-0.0, 1.0, math.nan, 3.0], dtype=torch.bfloat16))
    assert not same_bits(x, x.float())
    assert not same_bits(x, x[:2])
    odd = torch.arange(15.0).reshape(3, 5)
    assert same_bits(odd.T, odd.T.clone())
    assert same_bits(odd[:, 1:], odd[:, 1:].clone())
    changed = odd.clone()
    changed[2, 4] += 1
    assert not same_bits(odd, changed)
    wave = torch.complex(torch.arange(3.0), torch.arange(3.0))
    assert same_bits(wave.conj(), wave.conj().clone())
    assert not same_bits(wave.conj(), wave)
    assert same_bits(wave.conj().imag, -torch.arange(3.0))
    for empty in (torch.empty(0, 3), torch.empty(2, 0, dtype=torch.bool)):
        assert same_bits(empty, empty.clone())
    assert same_bits(torch.tensor(True), torch.tensor(True))
    assert not same_bits(torch.tensor(True), torch.tensor(False))
