"""The fused cross-entropy against the oracle, the plain form, and itself in other pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import require_agreement
from oracles import losses
from weft.core.errors import UnsupportedError
from weft.ops.forms import OPERATIONS
from weft.ops.linear_cross_entropy import CrossEntropy, linear_cross_entropy
from weft.ops.linear_log_prob import linear_log_prob, linear_logits

B, T, D, V = 2, 5, 3, 7
TARGETS = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(0))
SCORED = torch.tensor([[True, True, False, True, True], [False, True, True, True, False]])
OBJECTIVES: dict[str, dict[str, Any]] = {
    "plain": {}, "smoothed": {"smoothing": 0.2}, "z-loss": {"z_loss": 0.3}, "capped": {"softcap": 1.5},
    "all": {"smoothing": 0.1, "z_loss": 0.05, "softcap": 2.0}}


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return numbers.to(dtype).requires_grad_()


def inputs(bias: bool = False, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [random(B, T, D, seed=1, dtype=dtype), random(V, D, seed=2, dtype=dtype),
            *([random(V, seed=3, dtype=dtype)] if bias else [])]


def fused(arguments: list[Tensor], **options: Any) -> CrossEntropy:
    h, weight, *bias = arguments
    return linear_cross_entropy(h, weight, bias[0] if bias else None, TARGETS, SCORED, **options)


def plain(arguments: list[Tensor], softcap: float | None = None, smoothing: float = 0.0, z_loss: float = 0.0) -> Tensor:
    """The same sum by torch's own operators, all logits at once."""
    h, weight, *bias = arguments
    z = linear_logits(h, weight, bias[0] if bias else None, softcap)[SCORED]
    summed = torch.nn.functional.cross_entropy(z, TARGETS[SCORED], label_smoothing=smoothing, reduction="sum")
    return summed + z_loss * z.logsumexp(-1).square().sum()


def oracle(softcap: float | None = None, smoothing: float = 0.0, z_loss: float = 0.0) -> Any:
    def run(h: Any, weight: Any, bias: Any = 0.0) -> Any:
        z = (h @ weight.T + bias).reshape(B * T, V)
        z = z if softcap is None else softcap * np.tanh(z / softcap)
        counts, goals = SCORED.flatten().tolist(), TARGETS.flatten().tolist()
        mean = losses.cross_entropy(z, goals, counts, smoothing) + z_loss * losses.z_loss(z, counts)
        return np.array(sum(counts) * mean)
    return run


@pytest.mark.parametrize("entries", [1, 3 * V, 4 * V + 1, 1 << 22], ids=["token", "three", "four", "whole"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_pieces_equal_the_oracle_in_values_and_gradients(entries: int, bias: bool, name: str) -> None:
    arguments = inputs(bias)
    found = fused(arguments, **OBJECTIVES[name], piece_entries=entries)
    require_agreement(found.loss, arguments, oracle(**OBJECTIVES[name]))
    unchanged = {key: value for key, value in OBJECTIVES[name].items() if key == "softcap"}
    assert found.nats.item() == pytest.approx(float(oracle(**unchanged)(*(x.detach().numpy() for x in arguments))),
                                              rel=1e-12)
    assert not found.nats.requires_grad


def test_the_plain_sum_is_that_of_the_log_probabilities() -> None:
    h, weight = inputs()
    wanted = -linear_log_prob(h, weight, None, TARGETS)[SCORED].sum()
    assert_close(fused([h, weight]).nats, wanted.detach(), rtol=1e-13, atol=0)


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_what_needs_no_gradient_gets_none(frozen: tuple[int, ...]) -> None:
    arguments = inputs(bias=True)
    for index in frozen:
        arguments[index] = arguments[index].detach()
    learned = [x for x in arguments if x.requires_grad]
    mine, whole = fused(arguments, piece_entries=2 * V), plain(arguments)
    assert_close(mine.loss, whole, rtol=1e-12, atol=0)
    for found, wanted in zip(torch.autograd.grad(mine.loss, learned), torch.autograd.grad(whole, learned), strict=True):
        assert_close(found, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("frozen", "products"), [((), 3), ((2,), 3), ((0,), 2), ((1,), 2), ((1, 2), 2), ((0, 1), 1)])
def test_what_needs_no_gradient_costs_no_product(frozen: tuple[int, ...], products: int) -> None:
    """A frozen readout under trained layers: two products, of the logits and of the gradient of h. Counted as PyTorch
    runs them, and as the operator counts itself."""
    arguments = inputs(bias=True)
    for index in frozen:
        arguments[index] = arguments[index].detach()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        fused(arguments)
    run = sum(event.count for event in seen.key_averages() if event.key in ("aten::mm", "aten::addmm"))
    assert run == products + (2 not in frozen), "and one that sums the gradient of the bias"
    wanted = [index not in frozen for index in range(3)]
    cost = OPERATIONS.formula("weft.linear_cross_entropy")
    assert cost is not None
    given = (arguments[0].flatten(0, 1), *arguments[1:], TARGETS, SCORED, None, 0.0, 0.0, B * T, *wanted)
    assert cost(*given) == products * 2 * B * T * D * V


def test_without_gradients_the_sums_are_the_same() -> None:
    arguments = inputs(bias=True)
    with_gradients = fused(arguments, **OBJECTIVES["all"])
    with torch.no_grad():
        without = fused(arguments, **OBJECTIVES["all"])
    assert without.loss.item() == with_gradients.loss.item()
    assert not without.loss.requires_grad


def test_extreme_logits_stay_finite() -> None:
    h, weight = inputs()
    arguments = [(1e3 * h).detach().requires_grad_(), weight]
    found = torch.autograd.grad(fused(arguments, smoothing=0.1).loss, arguments)
    for mine, wanted in zip(found, torch.autograd.grad(plain(arguments, smoothing=0.1), arguments), strict=True):
        assert_close(mine, wanted, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_floats_are_summed_in_float32(dtype: torch.dtype) -> None:
    narrow = inputs(bias=True, dtype=dtype)
    exact = [x.detach().double().requires_grad_() for x in narrow]
    found = fused(narrow, **OBJECTIVES["all"], piece_entries=2 * V)
    assert found.loss.dtype is torch.float32
    # Logits of size about 3 are rounded to the dtype's eps, the smoothed sum is over 7 tokens; gradients are of order
    # one and are rounded a few times.
    bound = 8 * 7 * torch.finfo(dtype).eps
    assert_close(found.loss.double(), plain(exact, **OBJECTIVES["all"]), rtol=0, atol=bound)
    mine = torch.autograd.grad(found.loss, narrow)
    for grad, wanted in zip(mine, torch.autograd.grad(plain(exact, **OBJECTIVES["all"]), exact), strict=True):
        assert grad.dtype is dtype
        assert_close(grad.double(), wanted, rtol=0, atol=bound)


def test_products_that_autocast_narrows_are_summed_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    h, weight = (torch.randn(shape, generator=generator).requires_grad_() for shape in ((2, 40, 16), (30, 16)))
    targets, scored = torch.arange(80).view(2, 40) % 30, torch.ones(2, 40, dtype=torch.bool)
    wide = linear_cross_entropy(h, weight, None, targets, scored)
    exact = torch.autograd.grad(wide.loss, (h, weight))
    for entries in (1 << 22, 500):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = linear_cross_entropy(h, weight, None, targets, scored, piece_entries=entries)
        # A logit is rounded by 2^-9 of itself, some of them ten, and 80 errors are added up, of either sign.
        assert_close(found.nats, wide.nats, rtol=0, atol=80 * 10 * 2.0**-9)
        assert found.loss.item() == pytest.approx(float(found.nats), rel=1e-6)
        for mine, other in zip(torch.autograd.grad(found.loss, (h, weight)), exact, strict=True):
            assert (mine - other).norm() < 0.02 * other.norm()


def test_the_weights_gradient_is_added_up_in_float32() -> None:
    """4096 equal tokens in pieces of one: a sum in bfloat16 would stop growing at 2^8 times the addend."""
    h = torch.ones(1, 4096, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    found = linear_cross_entropy(h, weight, None, torch.zeros(1, 4096, dtype=torch.int64),
                                 torch.ones(1, 4096, dtype=torch.bool), piece_entries=1)
    gradient, = torch.autograd.grad(found.loss, weight)
    assert gradient.flatten().tolist() == [-2048.0, 2048.0]


def test_no_logits_are_kept_for_the_backward_pass() -> None:
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fused(inputs(), piece_entries=2 * V)
    assert 0 < max(sizes) <= max(B * T * D, V * D) < B * T * V


def test_no_tokens_sum_to_nothing() -> None:
    h, weight = random(B, 0, D, seed=1), random(V, D, seed=2)
    found = linear_cross_entropy(h, weight, None, TARGETS[:, :0], SCORED[:, :0])
    found.loss.backward()
    assert (found.nats.item(), found.loss.item()) == (0, 0)
    assert h.grad is not None
    assert weight.grad is not None
    assert weight.grad.abs().sum() == 0


def test_second_derivatives_are_refused() -> None:
    arguments = inputs()
    first, *_ = torch.autograd.grad(fused(arguments).loss, arguments, create_graph=True)
    with pytest.raises(UnsupportedError, match=r"has no second derivatives\. Differentiate `linear_log_prob`"):
        first.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_one_operator_to_the_compiler(dtype: torch.dtype) -> None:
    options = OBJECTIVES["all"]
    arguments = inputs(bias=True, dtype=dtype)

    def loss(*given: Tensor) -> Tensor:
        return fused(list(given), **options).loss * 0.25

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(*arguments)
    for mine, wanted in zip(torch.autograd.grad(compiled, arguments), torch.autograd.grad(loss(*arguments), arguments),
                            strict=True):
        # The same kernel on the same numbers; the factor is applied in one order or the other.
        assert_close(mine, wanted, rtol=4 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


def test_the_operator_passes_torchs_own_checks() -> None:
    h, weight, bias = inputs(bias=True)
    options = (None, 0.1, 0.2, 4, True, True, True)
    found = torch.library.opcheck(torch.ops.weft.linear_cross_entropy.default,
                                  (h.detach().flatten(0, 1), weight.detach(), bias.detach(), TARGETS.flatten(),
                                   SCORED.flatten(), *options))
    assert set(found.values()) == {"SUCCESS"}


def test_the_gradient_of_the_sum_is_not_rounded_to_bfloat16_before_it_scales() -> None:
    h, weight = random(2, 64, 64, seed=1, dtype=torch.bfloat16), random(V, 64, seed=2, dtype=torch.bfloat16)
    targets = torch.arange(128).view(2, 64) % V
    loss = linear_cross_entropy(h, weight, None, targets, torch.ones(2, 64, dtype=torch.bool)).loss
    plain, = torch.autograd.grad(loss, h, retain_graph=True)
    scaled, = torch.autograd.grad(1.3 * loss, h)
    factor = (scaled.double() * plain.double()).sum() / plain.double().square().sum()
    # 1.3 is 1.2969 in bfloat16; roundings of 8192 results, of up to 0.4 % each, cancel to 1e-4.
    assert_close(factor, torch.tensor(1.3, dtype=torch.float64), rtol=5e-4, atol=0)
