"""The cross-entropy in Triton: interpreted where there is no GPU, at a real vocabulary on one; why it does not serve.

`test_forms` holds it to the reference on the examples of the operation, too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from operations_counted import flops_of
from weft.core.errors import UnsupportedError
from weft.ops.linear_cross_entropy import CROSS_ENTROPY, CrossEntropyCall
from weft.ops.triton import cross_entropy, library

REASON = library.why_not()
assert REASON is None, f"the tests need Triton, which the extra dev installs: {REASON}"
DEVICE = "cpu" if library.interpreted() else "cuda"
TOKENS, WIDTH, VOCAB = (9, 5, 70) if DEVICE == "cpu" else (3000, 768, 50304)
BOUND = 3e-5
"""Relative to the largest entry: exponentials and sums over a vocabulary in float32, and a tanh by a sigmoid."""
NARROW = 2e-2
"""As `BOUND` where logits and their gradients are rounded to bfloat16, 2^-9 of each."""
OBJECTIVES: dict[str, dict[str, Any]] = {
    "plain": {}, "smoothed": {"smoothing": 0.2}, "z-loss": {"z_loss": 0.3}, "capped": {"softcap": 1.5},
    "all": {"smoothing": 0.1, "z_loss": 0.05, "softcap": 2.0}}


def call(dtype: torch.dtype = torch.float32, *, bias: bool = True, **options: Any) -> CrossEntropyCall:
    make = torch.Generator().manual_seed(0)
    h, weight, added = (torch.randn(shape, generator=make, dtype=torch.float64) for shape in
                        ((1, TOKENS, WIDTH), (VOCAB, WIDTH), (VOCAB,)))
    targets = torch.randint(VOCAB, (1, TOKENS), generator=make).to(DEVICE)
    targets[0, 0], targets[0, 1] = 0, VOCAB - 1
    given = [(x / (WIDTH ** 0.5 if x.dim() == 2 else 1)).to(DEVICE, dtype).requires_grad_() for x in (h, weight, added)]
    return CrossEntropyCall(given[0], given[1], given[2] if bias else None, targets, targets % 5 != 3, **options)


def wide(x: CrossEntropyCall) -> CrossEntropyCall:
    return x._replace(**{name: None if each is None else each.detach().double().requires_grad_()
                         for name, each in x._asdict().items() if name in ("h", "weight", "bias")})


def outcome(x: CrossEntropyCall, form: str) -> list[Tensor]:
    """Both sums, those of rows, and all gradients."""
    found = CROSS_ENTROPY(x, form)
    leaves = [each for each in x[:3] if each is not None]
    assert found.by_row is not None
    return [found.nats, found.loss.detach(), found.by_row, *torch.autograd.grad(1.3 * found.loss, leaves)]


def require_near(found: list[Tensor], exact: list[Tensor], bound: float) -> None:
    for got, expected in zip(found, exact, strict=True):
        assert got.isfinite().all()
        assert (got.double() - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("entries", [None, 4 * VOCAB], ids=["whole", "four tokens at a time"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_sums_and_gradients_are_those_of_the_reference(name: str, entries: int | None,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a vocabulary of several blocks, the last of which is not full."""
    monkeypatch.setattr(cross_entropy, "BLOCK", 32 if DEVICE == "cpu" else cross_entropy.BLOCK)
    x = call(**OBJECTIVES[name], piece_entries=entries if DEVICE == "cpu" else None)
    require_near(outcome(x, "triton"), outcome(wide(x), "reference"), BOUND)


def test_narrow_logits_are_summed_in_float32() -> None:
    x = call(torch.bfloat16, bias=False)
    found = outcome(x, "triton")
    assert [each.dtype for each in found] == [torch.float32] * 3 + [torch.bfloat16] * 2
    require_near(found, outcome(wide(x), "reference"), NARROW)


def test_pieces_are_added_up_in_float32() -> None:
    """4096 equal tokens in pieces of one: a sum in bfloat16 would stop growing at 2^8 times the addend."""
    count = 512 if DEVICE == "cpu" else 4096
    h = torch.ones(1, count, 1, dtype=torch.bfloat16, device=DEVICE)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    x = CrossEntropyCall(h, weight, None, torch.zeros(1, count, dtype=torch.int64, device=DEVICE),
                         torch.ones(1, count, dtype=torch.bool, device=DEVICE), piece_entries=2)
    gradient, = torch.autograd.grad(CROSS_ENTROPY(x, "triton").loss, weight)
    assert gradient.flatten().tolist() == [-count / 2, count / 2]


def test_logits_far_below_and_far_above_stay_finite() -> None:
    x = call()
    assert x.bias is not None
    hidden = x.bias.detach().clone()
    hidden[2::3] = -1e30
    x = x._replace(h=(100 * x.h).detach().requires_grad_(), bias=hidden.requires_grad_(),
                   targets=x.targets - x.targets % 3)
    require_near(outcome(x, "triton"), outcome(wide(x), "reference"), BOUND)


def test_what_needs_no_gradient_costs_none_and_the_sums_are_the_same() -> None:
    x = call()
    with torch.no_grad():
        without = CROSS_ENTROPY(x, "triton")
    assert torch.equal(without.loss, CROSS_ENTROPY(x, "triton").loss.detach())
    frozen = x._replace(weight=x.weight.detach(), bias=None)
    slope, = torch.autograd.grad(CROSS_ENTROPY(frozen, "triton").loss, frozen.h)
    assert slope.shape == x.h.shape
    given = (x.h[0], x.weight, None, x.targets[0], x.scored[0], None, 0.0, 0.0, 4)
    mine, plain = torch.ops.weft.triton_cross_entropy, torch.ops.weft.linear_cross_entropy
    for needed in ((True, True, False), (True, False, False), (False, False, False)):
        assert flops_of(mine, (*given, *needed), None) == flops_of(plain, (*given, *needed), None) > 0


def test_two_calls_give_the_same_bits() -> None:
    x = call(smoothing=0.1)
    for one, other in zip(outcome(x, "triton"), outcome(x, "triton"), strict=True):
        assert torch.equal(one, other)


def test_the_operator_is_well_formed() -> None:
    h, weight, bias, targets, scored, *_ = call()
    found = torch.library.opcheck(torch.ops.weft.triton_cross_entropy.default,
                                  (h[0].detach(), weight.detach(), None if bias is None else bias.detach(), targets[0],
                                   scored[0], None, 0.1, 0.2, 4, True, True, True),
                                  test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    assert set(found.values()) == {"SUCCESS"}


def test_why_a_call_is_not_served() -> None:
    x = call()
    with pytest.raises(UnsupportedError, match="its tensors are of several dtypes"):
        CROSS_ENTROPY(x._replace(weight=x.weight.double()), "triton")
    with torch.autocast(DEVICE, dtype=torch.bfloat16), pytest.raises(UnsupportedError, match="autocast chooses"):
        CROSS_ENTROPY(x, "triton")
