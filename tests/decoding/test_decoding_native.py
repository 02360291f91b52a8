"""Steps that run what is written in C as one sequence: bit for bit those of the model's own code, in float32 and in
bfloat16, with rows that come and go; and nothing that a step returned changes afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from decoding.small_models import MLP, ROPE, VOCAB, decoder, reseeded
from weft.core.model import LanguageModel
from weft.decoding import Row
from weft.decoding.native_calls import in_c
from weft.decoding.recording import Call, Recording
from weft.decoding.session import Session
from weft.ops.forms import forced
from weft.ops.native.sequence import WRITERS, Calls

GROUPED = {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "d_head": 4, "position": "rope"}
SWIGLU = {"kind": "glu", "d_ff": 24}
MODELS: dict[str, tuple[dict[str, Any], ...]] = {
    "attention": (GROUPED, SWIGLU, GROUPED, SWIGLU), "mamba": ({"kind": "mamba"}, {"kind": "mamba"}),
    "window": ({**GROUPED, "mask": "causal & window(5)"}, MLP), "hybrid": (GROUPED, {"kind": "mamba"}, SWIGLU),
    "lstm": ({"kind": "lstm"}, SWIGLU), "alibi": ({**ROPE, "position": "alibi"}, SWIGLU)}
NEW = 60


def model_of(name: str, dtype: torch.dtype) -> LanguageModel:
    return decoder(*MODELS[name]).to(dtype).eval()


def sessions(model: LanguageModel, *lengths: int) -> tuple[Session, Session]:
    generator = reseeded(3)
    rows = [Row(tuple(torch.randint(VOCAB, (length,), generator=generator).tolist())) for length in lengths]
    taped, plain = (Session(model, rows, max_new_tokens=NEW, plain=plain) for plain in (False, True))
    return taped, plain


def same(one: Session, other: Session) -> None:
    assert torch.equal(one.logits, other.logits)
    for path, (wanted, _) in other.state.tensors().items():
        assert torch.equal(one.state.tensors()[path][0], wanted), path


def follow(taped: Session, plain: Session, steps: int, moving: Tensor | None = None) -> None:
    generator = reseeded(4)
    for _ in range(steps):
        tokens = torch.randint(VOCAB, (plain.logits.shape[0],), generator=generator)
        taped.advance(tokens, moving)
        plain.advance(tokens, moving)


def sequences(session: Session) -> list[Calls]:
    steps = session._steps._tape
    assert steps is not None and session.by_tape
    return [line[0] for line in steps.step._run._lines if isinstance(line[0], Calls)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [(5,), (3, 6, 4)])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_in_c_is_a_step_of_the_model_bit_for_bit(name: str, lengths: tuple[int, ...],
                                                        dtype: torch.dtype) -> None:
    taped, plain = sessions(model_of(name, dtype), *lengths)
    kept = []
    for _ in range(14):
        follow(taped, plain, 1)
        # With another bound on the keys, sums of weights in float32 have other lengths: a bit may differ where a step
        # of the model's own code reads fewer slots, so the bound is that of rounding.
        bound = 1e-5 if dtype == torch.float32 else 5e-2
        torch.testing.assert_close(taped.logits, plain.logits, rtol=bound, atol=bound)
        kept.append((taped.logits, taped.logits.clone()))
    assert sequences(taped)
    assert all(torch.equal(*pair) for pair in kept), "logits of an earlier step were written over"


def test_a_whole_step_of_attention_or_mamba_is_one_or_two_sequences() -> None:
    for name, most in (("attention", 2), ("mamba", 1)):
        taped, plain = sessions(model_of(name, torch.float32), 5)
        follow(taped, plain, 8)
        found = sequences(taped)
        assert len(found) <= most
        assert sum(len(each._calls) for each in found) > 12


def test_a_sequence_has_the_bits_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("hybrid", torch.bfloat16)
    joined, _ = sessions(model, 5, 4)
    with monkeypatch.context() as patch:
        patch.setattr("weft.decoding.native_calls.WRITERS", {})
        apart, _ = sessions(model, 5, 4)
        follow(joined, joined_twin := sessions(model, 5, 4)[0], 0)
        generator = reseeded(4)
        tokens = [torch.randint(VOCAB, (2,), generator=generator) for _ in range(16)]
        for each in tokens:
            apart.advance(each)
    assert not sequences(apart)
    for each in tokens:
        joined.advance(each)
        joined_twin.advance(each)
    assert sequences(joined) and WRITERS
    same(joined, apart)
    same(joined_twin, apart)


def test_sessions_of_one_model_do_not_share_memory() -> None:
    model = model_of("attention", torch.float32)
    one, plain = sessions(model, 5)
    other, _ = sessions(model, 3)
    generator = reseeded(5)
    tokens = torch.randint(VOCAB, (20, 1), generator=generator)
    for token in tokens:
        one.advance(token)
        other.advance(token + 1 if int(token) + 1 < VOCAB else token)
        plain.advance(token)
    assert sequences(one) and sequences(other)
    torch.testing.assert_close(one.logits, plain.logits, rtol=1e-5, atol=1e-5)


def test_rows_come_and_go_between_steps_in_c() -> None:
    model = model_of("hybrid", torch.float32)
    taped, plain = sessions(model, 5, 3, 4)
    follow(taped, plain, 8)
    follow(taped, plain, 6, torch.tensor([True, False, True]))
    for session in (taped, plain):
        session.retire([1])
        session.admit([1], [Row((1, 2, 3))])
    follow(taped, plain, 8)
    assert sequences(taped)
    torch.testing.assert_close(taped.logits, plain.logits, rtol=1e-5, atol=1e-5)


def test_a_named_form_is_taken_in_steps_too() -> None:
    model = model_of("attention", torch.float32)
    with forced({"attention": "reference", "layer_norm": "reference"}):
        taped, plain = sessions(model, 5)
        follow(taped, plain, 8)
    functions = {each.function for found in sequences(taped) for each in found._calls}
    assert not functions & {"weft_query_call", "weft_norm_call"} and "weft_product_call" in functions


def test_without_native_code_a_tape_is_a_list_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.decoding.native_calls.unavailable", lambda: "no C compiler is here")
    taped, plain = sessions(model_of("attention", torch.float32), 5)
    follow(taped, plain, 8)
    assert taped.by_tape and not sequences(taped)


@pytest.mark.parametrize("made", [lambda: torch.ones(2, 3, device="meta"), lambda: torch.ones(2, 3).to_mkldnn(),
                                  lambda: torch.ones(2, 3)._neg_view()])
def test_tensors_that_do_not_lie_in_main_memory_as_they_are_stay_with_torch(made: Any) -> None:
    for tensor, taken in ((torch.ones(2, 3), True), (made(), False)):
        recording = Recording()
        refs = tuple(recording.ref(each) for each in (tensor, tensor.clone(), torch.ones(2, 3)))
        call = Call(torch.Tensor.add, refs[:2], {}, refs[:2], (), refs[2:], True, None)
        assert bool(in_c(call, recording).in_c) is taken
