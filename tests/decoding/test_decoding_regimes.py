"""Decoding past the trained length: every row equals that row alone, recomputed in full at every token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from decoding.small_models import DYNAMIC, LONGROPE, MLP, ROPE, build, decoder, reseeded
from weft.core.model import EncoderInputs, LanguageModel
from weft.core.span import Memory, Span
from weft.decoding import Ending, Row, generate
from weft.decoding.session import Session
from weft.evaluation import score
from weft.models.decoder import Decoder

TRAINED, NEW = 8, 9
"""The trained length of every scaling here. Prompts of 3 to 12 tokens lie below, at and above it."""
LENGTHS = (8, 3, 12, 7, 5)
SCALINGS: dict[str, dict[str, Any]] = {
    "none": {}, "linear": {"factor": 4.0}, "ntk": {"factor": 4.0},
    "dynamic": {"factor": 2.0, "original_length": TRAINED},
    "yarn": {"factor": 4.0, "original_length": TRAINED, "beta_fast": 2.0, "beta_slow": 0.5},
    "llama3": {"factor": 8.0, "original_length": TRAINED, "low_freq_factor": 0.5, "high_freq_factor": 2.0},
    "longrope": {"short_factor": [1.0, 1.5], "long_factor": [3.0, 7.0], "original_length": TRAINED, "factor": 4.0},
}
SHAPES: dict[str, dict[str, Any]] = {
    "growing": {}, "rolling": {"mask": "causal & window(4)", "n_kv_heads": 1},
    "partial": {"d_head": 6, "rot": 4},
}


def rotated(scaling: str, shape: str = "growing") -> LanguageModel:
    fields = dict(SHAPES[shape])
    position = {"kind": "rope", "base": 50.0, "layout": "half_split",
                "scaling": {"kind": scaling, **SCALINGS[scaling]}, "rot": fields.pop("rot", None)}
    return decoder({**ROPE, **fields, "position": position}, MLP)


def ragged_rows() -> list[Row]:
    generator = reseeded(3)
    return [Row(tuple(torch.randint(11, (length,), generator=generator).tolist())) for length in LENGTHS]


def memory_of(model: LanguageModel, row: Row) -> Memory | None:
    return None if row.source is None else model.encode(EncoderInputs(tokens=torch.tensor([row.source])))


@torch.no_grad()
def logits_alone(model: LanguageModel, row: Row, tokens: tuple[int, ...]) -> Tensor:
    """Of the token after ``tokens``, by running them whole, alone and without a state."""
    return model.eval()(torch.tensor([tokens]), None, Span(memory=memory_of(model, row))).y[0, -1]


def greedy_alone(model: LanguageModel, row: Row, steps: int) -> tuple[list[int], list[float]]:
    tokens, values = row.tokens, list[float]()
    for _ in range(steps):
        best = logits_alone(model, row, tokens).log_softmax(-1).max(-1)
        tokens, values = (*tokens, int(best.indices)), [*values, float(best.values)]
    return list(tokens[len(row.tokens) :]), values


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_greedy_equals_full_recomputation_past_the_trained_length(scaling: str, shape: str) -> None:
    model = rotated(scaling, shape)
    rows = ragged_rows()
    found = generate(model, rows, max_new_tokens=NEW, log_probs=True)
    for row, result in zip(rows, found.rows, strict=True):
        tokens, values = greedy_alone(model, row, NEW)
        assert list(result.tokens) == tokens
        assert result.log_probs == pytest.approx(values, rel=1e-9, abs=1e-9)  # float64 through a dozen layers


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_how_many_tokens_may_come_changes_none_of_them(scaling: str) -> None:
    """A row's tokens depend on those before them, not on how long it was allowed to become."""
    model, rows = rotated(scaling), ragged_rows()
    long = generate(model, rows, max_new_tokens=NEW)
    short = generate(model, rows, max_new_tokens=2)
    assert [row.tokens for row in short.rows] == [row.tokens[:2] for row in long.rows]


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_rows_that_end_leave_the_others_as_they_are(scaling: str) -> None:
    model, rows = rotated(scaling), ragged_rows()
    free = generate(model, rows, max_new_tokens=NEW)
    stop = free.rows[1].tokens[3]
    found = generate(model, rows, max_new_tokens=NEW, ending=Ending(tokens=(stop,)))
    assert len({len(row.tokens) for row in found.rows}) > 1
    for result, whole in zip(found.rows, free.rows, strict=True):
        end = whole.tokens.index(stop) + 1 if stop in whole.tokens else NEW
        assert result.tokens == whole.tokens[:end]


@pytest.mark.parametrize("position", [LONGROPE, DYNAMIC])
def test_an_encoder_decoder_keeps_each_row_s_source(position: dict[str, Any]) -> None:
    mixers = [{**ROPE, "position": position}, {"kind": "cross_attention", "n_heads": 2}]
    model = build({"kind": "encoder_decoder", "vocab_size": 11, "d_model": 8, "embedding": {"std": 1.0},
                   "encoder": {"kind": "encoder", "vocab_size": 11, "d_model": 8, "embedding": {"std": 1.0},
                               "blocks": [{"kind": "pre", "layers": [{**ROPE, "mask": "bidirectional"}]}]},
                   "blocks": [{"kind": "pre", "layers": mixers}, {"kind": "pre", "layers": mixers}]})
    rows = [Row(row.tokens, row.tokens[1:3] * (1 + place)) for place, row in enumerate(ragged_rows())]
    found = generate(model, rows, max_new_tokens=NEW, log_probs=True)
    for row, result in zip(rows, found.rows, strict=True):
        tokens, values = greedy_alone(model, row, NEW)
        assert list(result.tokens) == tokens
        assert result.log_probs == pytest.approx(values, rel=1e-9, abs=1e-9)


class Counted:
    """Counts what a model is asked to run: (rows, tokens) of every call."""

    def __init__(self, model: LanguageModel) -> None:
        self.calls: list[tuple[int, ...]] = []
        assert isinstance(model, Decoder)
        model.stack.register_forward_pre_hook(lambda _module, inputs: self.calls.append(tuple(inputs[0].shape[:2])))


def advanced(session: Session, steps: int) -> None:
    for _ in range(steps):
        session.advance(session.logits.argmax(-1))


def test_only_rows_that_outgrow_their_state_run_again() -> None:
    """LongRoPE once for each row, dynamic scaling at every token beyond the trained length, the others never."""
    rows = [Row((1,) * 7), Row((2,) * 6), Row((3,) * 10)]
    wanted = {
        "yarn": [(3, 10), (3, 1), (3, 1), (3, 1)],
        "longrope": [(3, 10), (3, 1), (3, 1), (1, 9), (3, 1), (1, 9)],
        "dynamic": [(3, 10), (3, 1), (1, 11), (3, 1), (2, 12), (3, 13)],
    }
    for scaling, calls in wanted.items():
        model = rotated(scaling).eval()
        counted = Counted(model)
        advanced(Session(model, rows, max_new_tokens=4), 3)
        assert counted.calls == calls, scaling


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
@pytest.mark.parametrize("first", [5, 9])
def test_selected_rows_go_on_by_their_own_tokens(scaling: str, first: int) -> None:
    """Beams of one prompt part ways, and are each run again with their own tokens when they outgrow their state."""
    model = rotated(scaling).eval()
    prompt = Row(tuple(range(first)))
    session = Session(model, [prompt, Row((1, 2))], max_new_tokens=6)
    texts = [prompt.tokens, prompt.tokens, (1, 2)]
    session.select(torch.tensor([0, 0, 1]))
    for step in range(5):
        tokens = [step, step + 4, step + 2]
        session.advance(torch.tensor(tokens))
        texts = [(*text, token) for text, token in zip(texts, tokens, strict=True)]
        for place, text in enumerate(texts):
            torch.testing.assert_close(session.logits[place], logits_alone(model, prompt, text), rtol=1e-9, atol=1e-9)


def test_the_scalings_that_depend_on_length_do_change_the_logits() -> None:
    """Else the tests above would hold for a state that is never run again."""
    row = Row(tuple(range(10)))
    for scaling in ("dynamic", "longrope"):
        model = rotated(scaling)
        with torch.no_grad():
            short, long = (model(torch.tensor([row.tokens]), None, Span(horizon=torch.tensor([length]))).y
                           for length in (TRAINED, 10))
        assert (short - long).abs().max() > 1e-2


@pytest.mark.parametrize("scaling", SCALINGS)
def test_scores_declare_each_row_s_own_length(scaling: str) -> None:
    model, rows = rotated(scaling), ragged_rows()
    found = score(model, rows, logits=True)
    assert found.logits is not None
    for row, logits in zip(rows, found.logits, strict=True):
        with torch.no_grad():
            alone = model(torch.tensor([row.tokens])).y[0]
        torch.testing.assert_close(logits, alone.float(), rtol=1e-6, atol=1e-6)
