"""What a run takes here, by arithmetic on a machine of known speed; and where operations go, beside quoted shares."""

from __future__ import annotations

import pytest
import torch

from weft import api
from weft.analysis.cost_plan import Plan
from weft.analysis.memory import States, StateSize
from weft.analysis.run_costs import run_here, state_at
from weft.api.examining import flops_shares
from weft.core.errors import UnsupportedError
from weft.core.model import parse_model

SPEED, COPY = 1e9, 1e6


def planned(**numbers: int) -> Plan:
    block = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}, {"kind": "mlp", "d_ff": 12}]}
    return api.plan(parse_model({"kind": "decoder", "vocab_size": 29, "context": 32, "d_model": 8, "blocks": [block]}),
                    **numbers)


def test_training_and_decoding_on_a_machine_of_known_speed() -> None:
    found = planned(batch=3, context=16)
    here = run_here(found, rate=lambda dtype: SPEED, bandwidth=lambda: COPY, memory=10**9)
    assert here is not None and here.decode is not None and found.step is not None and found.training is not None
    assert here.train.seconds == pytest.approx(found.step.flops / SPEED)
    assert here.train.tokens_per_second == pytest.approx(3 * 16 / here.train.seconds)
    kept = found.training.weights + found.training.gradients + found.training.optimizer
    assert here.train.memory == kept + found.step.activations + found.buffers and here.train.fits
    numbers, state = found.parameters.total, 2 * 8 * 4 * 16 * 3
    assert here.decode.memory >= 4 * numbers + state
    assert here.decode.seconds == pytest.approx((here.decode.memory - found.buffers) / COPY)
    assert found.flops is not None
    assert here.decode.prompt_seconds == pytest.approx(found.flops.visible * 3 * 16 / SPEED)
    slow = run_here(found, rate=lambda dtype: 1.0, bandwidth=lambda: 1e18, memory=1)
    assert slow is not None and slow.decode is not None
    assert slow.decode.seconds == pytest.approx(2 * numbers * 3)
    assert (slow.train.fits, slow.decode.fits) == (False, False)


def test_experts_that_a_token_does_not_choose_are_not_read() -> None:
    layer = {"kind": "moe", "expert": {"kind": "glu", "d_ff": 6}, "n_experts": 4, "top_k": 1}
    found = api.plan(parse_model({"kind": "decoder", "vocab_size": 29, "d_model": 8, "context": 8,
                                  "blocks": [{"kind": "pre", "layers": ["lstm", layer]}]}))
    here = run_here(found, rate=lambda dtype: 1e18, bandwidth=lambda: COPY, memory=0)
    assert here is not None and here.decode is not None and here.train.fits is None
    state = here.decode.memory - found.weights["float32"] - found.buffers
    assert here.decode.seconds == pytest.approx((4 * found.parameters.active + state) / COPY)


def test_an_encoder_trains_and_does_not_decode_and_counts_do_neither() -> None:
    encoder = api.plan("encoder", ["model.vocab_size=64", "model.blocks.0.repeat=1"], here=False)
    here = run_here(encoder, rate=lambda dtype: SPEED, bandwidth=lambda: COPY, memory=1)
    assert here is not None and here.decode is None
    assert not any("Decoding" in line for line in here.assumptions)
    assert run_here(api.plan(parse_model({"kind": "ngram", "vocab_size": 5, "order": 3}))) is None


@pytest.mark.parametrize(("context", "size"), [(1, 10), (2, 20), (3, 30), (8, 60), (100, 520)])
def test_a_state_between_and_beyond_the_known_sizes(context: int, size: int) -> None:
    sizes = tuple(StateSize(at, 1, held) for at, held in ((2, 20), (4, 40), (8, 60)))
    assert state_at(States("growing", 5.0, sizes), context) == size


def test_the_batch_and_context_are_those_of_the_run_that_is_planned() -> None:
    small = ["model.vocab_size=64", "model.blocks.0.repeat=1"]
    found = api.plan("transformer", small)
    assert (found.batch, found.context) == (16, 128)
    found = api.plan("transformer", [*small, "training.batch_size=2", "training.context=32"])
    assert (found.batch, found.context) == (2, 32)
    assert api.plan("transformer", small, batch=1, context=8).batch == 1


def test_the_shares_of_gpt3_beside_the_quoted_ones() -> None:
    found, shares = flops_shares("gpt3-175b")
    counted = {row.part: row.share_full for row in shares.rows}
    assert shares.context == 2048 and found.context == 2048
    assert counted["attention projections"] == pytest.approx(0.32, abs=0.005)
    assert shares.quoted["attention projections"] == 0.17
    assert "do not follow from the model's shapes" in shares.why_not
    assert any("T = 2,048 tokens" in line and "vocabulary of 50,257" in line for line in shares.assumptions)


def test_a_model_that_nobody_quotes_and_one_without_operations() -> None:
    _, shares = flops_shares("transformer", ["model.vocab_size=64", "model.blocks.0.repeat=1"], context=8)
    assert not shares.quoted and not shares.why_not
    assert flops_shares("gpt3-175b", ["model.context=64"], context=8)[1].quoted == {}, "another model"
    with pytest.raises(UnsupportedError, match=r"looks up counts and has no operations .*Leave out --flops"):
        flops_shares(parse_model({"kind": "ngram", "vocab_size": 5, "order": 3}))


def test_the_speed_of_this_machine_is_measured() -> None:
    here = api.plan(parse_model({"kind": "decoder", "vocab_size": 9, "d_model": 8, "context": 8, "blocks": [
        {"kind": "pre", "layers": ["lstm"]}]}), here=True, dtype="float32").here
    assert here is not None and here.rate > 1e8 and here.bandwidth > 1e8
    assert len(here.assumptions) == 4 and torch.get_num_threads() >= 1
