"""Law 8 where a layer chooses: near ties may fall otherwise in another dtype, anything else may not."""

from __future__ import annotations

import pytest
import torch

from weft.blocks.residual import PreNormConfig
from weft.core.layer import Choice, Layer
from weft.core.part_config import Dims
from weft.feedforward.glu import GLU
from weft.feedforward.moe import MixtureOfExperts
from weft.laws import examine, layer_subject
from weft.laws.in_pieces import Choices, recorded

WIDTH = 8


def experts(seed: int) -> MixtureOfExperts:
    torch.manual_seed(seed)
    return MixtureOfExperts(WIDTH, [GLU(WIDTH, 6) for _ in range(4)], 2).double()


def rounded_before(seed: int) -> Layer:
    """Experts behind a layer, whose rounding moves what they choose by."""
    torch.manual_seed(seed)
    chosen = {"kind": "moe", "n_experts": 4, "top_k": 2, "expert": {"kind": "glu", "d_ff": 6}}
    block = PreNormConfig.model_validate({"layers": [{"kind": "mlp", "d_ff": 12}, chosen]})
    return block.build(Dims(WIDTH, 11, 32)).double()


def choices_of(chosen: list[int], margin: list[float]) -> Choices:
    choices = Choices()
    choices.add("moe", Choice(torch.tensor(chosen)[None, :, None], torch.tensor(margin)[None]))
    return choices


@pytest.mark.parametrize("seed", range(25))
def test_precision_holds_for_every_seed(seed: int) -> None:
    report = examine(layer_subject("moe", rounded_before(seed), WIDTH), seed, ("precision",))
    assert report.holds, report.broken()


def test_some_of_these_seeds_meet_a_near_tie() -> None:
    margins = [finding.difference for seed in range(25)
               for finding in examine(layer_subject("moe", rounded_before(seed), WIDTH), seed, ("precision",)).findings
               if "margin" in finding.case]
    assert 0.0 < max(margins) < 0.06


def test_choices_are_collected_over_pieces() -> None:
    model = experts(0).eval()
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    with recorded(model) as whole:
        model(x)
    with recorded(model) as pieces:
        state = None
        for piece in x.split([3, 4], 1):
            state = model(piece, state).state
    torch.testing.assert_close(whole.of("").chosen, pieces.of("").chosen)
    # The margin is relative to the largest score of a call, so pieces have margins of their own.
    assert pieces.of("").margin.shape == whole.of("").margin.shape
    model(x)
    assert whole.of("").chosen.shape == (2, 7, 2), "nothing is collected once the block has ended"


def test_what_follows_a_different_choice_is_not_compared() -> None:
    other = choices_of([0, 2, 1, 3], [0.] * 4)
    agreed, margin = choices_of([0, 1, 2, 3], [.5, .1, .9, .9]).against(other, 4, causal=True)
    assert agreed.tolist() == [[True, False, False, False]]
    assert margin == pytest.approx(0.1), "the second difference reads inputs that the first has changed"


def test_without_causality_the_row_is_not_compared() -> None:
    agreed, margin = choices_of([0, 1], [.5, .25]).against(choices_of([0, 2], [0.] * 2), 2, causal=False)
    assert agreed.tolist() == [[False, False]] and margin == pytest.approx(0.25)


def test_the_order_of_the_chosen_does_not_matter() -> None:
    first, second = Choices(), Choices()
    first.add("moe", Choice(torch.tensor([[[0, 1]]]), torch.tensor([[0.5]])))
    second.add("moe", Choice(torch.tensor([[[1, 0]]]), torch.tensor([[0.5]])))
    assert first.against(second, 1, causal=True)[0].tolist() == [[True]]
