"""The routers of DeepSeek-V2 and V3 against a loop over tokens, in float64; the correction that training moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from oracles import feedforward
from oracles import moe as oracle
from oracles.finite_difference import gradient_agrees
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.feedforward.glu import GLUConfig
from weft.feedforward.moe import MixtureOfExperts, MixtureOfExpertsConfig

B, T, D, F, N = 2, 5, 6, 4, 8
EXACT = {"rtol": 1e-12, "atol": 1e-12}
V2 = {"n_expert_groups": 4, "top_groups": 2, "factor": 2.5}
V3 = {**V2, "score_function": "sigmoid", "group_score": "best_two", "correction": True}


def mixture(routing: dict[str, Any], **fields: Any) -> MixtureOfExperts:
    torch.manual_seed(0)
    config = MixtureOfExpertsConfig.model_validate({"expert": GLUConfig(d_ff=F), "n_experts": N, "top_k": 3,
                                                    "routing": routing, **fields})
    layer = config.build(Dims(D)).double()
    if layer.correction is not None:
        layer.correction.copy_(torch.linspace(0.3, -0.3, N)[torch.randperm(N)])
    return layer


def tokens(seed: int = 1) -> Tensor:
    return torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("routing", [
    V2, V3, {**V2, "group_score": "best_two"}, {**V3, "group_score": "best"}, {**V3, "correction": False},
    {"score_function": "sigmoid", "correction": True}, {"correction": True}],
    ids=["v2", "v3", "softmax-two", "sigmoid-best", "uncorrected", "ungrouped", "softmax-corrected"])
def test_values_and_gradients_are_the_oracle_s(routing: dict[str, Any], renormalise: bool) -> None:
    layer = mixture(routing, renormalise=renormalise)
    x = tokens().requires_grad_()
    arguments = [x, *layer.parameters()]
    numbers = [a.detach().numpy() for a in arguments]
    correction = None if layer.correction is None else layer.correction.numpy()

    def reference(rows: Any, router: Any, *weights: Any) -> Any:
        flat = rows.reshape(-1, D)
        _, gates = oracle.grouped_route(
            flat @ router.T, 3, sigmoid=routing.get("score_function") == "sigmoid",
            groups=routing.get("n_expert_groups", 1), top_groups=routing.get("top_groups", 1),
            best_two=routing.get("group_score") == "best_two",
            correction=correction, renormalise=renormalise, factor=routing.get("factor", 1.0))
        y = sum(gates[:, n:n + 1] * feedforward.swiglu(flat, *weights[3 * n:3 * n + 3]) for n in range(N))
        return y.reshape(rows.shape)

    y = layer(x).y
    assert_close(y.detach(), torch.from_numpy(reference(*numbers)), **EXACT)
    weight = torch.randn_like(y)
    gradients = [g.numpy() for g in torch.autograd.grad((y * weight).sum(), arguments)]
    assert gradient_agrees(reference, numbers, gradients, np.random.default_rng(0), cotangent=weight.numpy(),
                           n_directions=1)


def test_the_correction_chooses_and_does_not_weigh() -> None:
    """A correction that decides everything gives the gates of the uncorrected scores."""
    layer = mixture({"score_function": "sigmoid", "correction": True}, renormalise=False)
    assert layer.correction is not None
    layer.correction.copy_(torch.tensor([9.0, 8, 7, 0, 0, 0, 0, 0]))
    x = tokens()
    scores = (x @ layer.router.weight.T).sigmoid()
    expected = sum(scores[..., n:n + 1] * layer.experts[n](x).y for n in range(3))
    assert_close(layer(x).y, expected, **EXACT)
    assert not layer.correction.requires_grad and "correction" in layer.state_dict()


@pytest.mark.parametrize("routing", [V2, V3, {"correction": True}], ids=["v2", "v3", "ungrouped"])
def test_the_margin_is_the_lesser_of_both_gaps(routing: dict[str, Any]) -> None:
    """Between the last chosen and the first unchosen expert of the open groups, and between open and closed groups."""
    layer = mixture(routing)
    choice = layer.choose(tokens())
    scores = (tokens() @ layer.router.weight.T).detach().flatten(0, 1)
    softmax = scores.softmax(-1) if "correction" in routing else scores
    scores = scores.sigmoid() if "score_function" in routing else softmax
    scores = scores if layer.correction is None else scores + layer.correction
    size, most, gaps = N // routing.get("n_expert_groups", 1), 0.0, []
    for row in scores.tolist():
        parts = [sorted(row[g:g + size], reverse=True) for g in range(0, N, size)]
        worth = sorted(((sum(part[:2 if "group_score" in routing else 1]), part) for part in parts), reverse=True)
        opened = routing.get("top_groups", 1)
        experts = sorted((value for _, part in worth[:opened] for value in part), reverse=True)
        between = worth[opened - 1][0] - worth[opened][0] if opened < len(worth) else np.inf
        gaps.append(min(experts[2] - experts[3], between))
        most = max(most, *map(abs, experts))
    assert_close(choice.margin.flatten(), torch.tensor(gaps, dtype=torch.float64) / most, **EXACT)


def test_the_balancing_loss_of_sigmoids_takes_their_shares() -> None:
    layer = mixture({"score_function": "sigmoid"}, balance_loss=0.3, z_loss=0.0)
    out = layer(tokens())
    scores = (tokens() @ layer.router.weight.T).flatten(0, 1).sigmoid()
    counts = torch.zeros(N, dtype=torch.float64)
    for row in layer.choose(tokens()).chosen.flatten(0, 1):
        counts[row] += 1
    mean = (scores / scores.sum(1, keepdim=True)).mean(0)
    assert_close(out.losses[0].value, 0.3 * N * (counts / counts.sum() * mean).sum(), **EXACT)


def test_a_step_moves_the_correction_against_the_load() -> None:
    """Both calls of a step count, padding does not; the sign of the excess over the mean is what moves it."""
    layer = mixture({"score_function": "sigmoid", "correction": True, "correction_rate": 0.01})
    assert layer.correction is not None
    layer.train()
    count = torch.tensor([3, 5])
    loads, before = torch.zeros(N), layer.correction.clone()
    for seed, span, valid in ((1, Span(), torch.ones(B, T, dtype=torch.bool)),
                              (2, Span(count=count), torch.arange(T)[None] < count[:, None])):
        for row in layer.choose(tokens(seed)).chosen[valid]:
            loads[row] += 1
        layer(tokens(seed), None, span)
        assert torch.equal(layer.correction, before), "calls of a step choose alike"
    assert layer.tally is not None
    assert_close(layer.tally.numbers, loads, **EXACT)
    assert layer.after_step(lambda *values: [2 * value for value in values])
    assert_close(layer.correction, before + 0.01 * (loads.mean() - loads).sign().double(), **EXACT)
    again = layer.correction.clone()
    layer.after_step(lambda *values: list(values))  # nothing was counted since
    assert torch.equal(layer.correction, again)


@pytest.mark.parametrize("how", ["evaluation", "no gradients", "rate"])
def test_only_training_moves_it(how: str) -> None:
    layer = mixture({"correction": True, "correction_rate": 0.0 if how == "rate" else 0.1}).train(how != "evaluation")
    assert layer.correction is not None
    before = layer.correction.clone()
    with torch.set_grad_enabled(how != "no gradients"):
        layer(tokens())
    layer.after_step(lambda *values: list(values))
    assert torch.equal(layer.correction, before)


def test_casts_keep_the_correction_wide() -> None:
    layer = mixture({"correction": True}).float().bfloat16()
    assert layer.correction is not None and layer.correction.dtype == torch.float32
    assert layer.router.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(("fields", "message"), [
    ({"n_expert_groups": 3}, "routing.n_expert_groups: 8 experts do not divide into 3 groups. Choose a divisor."),
    ({"n_expert_groups": 4, "top_groups": 5}, "routing.top_groups: 5 groups for a token, but there are only 4. Lower "
                                              "top_groups or raise n_expert_groups."),
    ({"n_expert_groups": 8, "group_score": "best_two"}, "routing.group_score: 'best_two' of groups with 1 expert each. "
                                                        "Use 'best', or fewer groups."),
    ({"n_expert_groups": 8, "top_groups": 2}, "routing.top_groups: 2 of 8 groups have 2 experts, and 3 are chosen for "
                                              "each token. Raise top_groups, or lower top_k."),
    ({"score_function": "relu"}, "routing.score_function: Input should be 'softmax' or 'sigmoid', got 'relu'")])
def test_bad_routing_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_part(("feedforward",), {"kind": "moe", "n_experts": 8, "top_k": 3, "routing": fields})
    assert message in str(error.value)
