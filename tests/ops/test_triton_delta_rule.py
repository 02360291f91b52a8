"""The delta rule in Triton: interpreted where there is no GPU, at real lengths on one; what it serves, keeps and costs.

`test_forms` holds it to the reference on the examples of the operation, too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import fast_interpreter  # noqa: F401
from operations_counted import flops_of
from weft.core.errors import UnsupportedError
from weft.ops.delta_rule import DELTA_RULE, DeltaRuleCall, delta_rule
from weft.ops.forms import forced
from weft.ops.triton import delta_rule as triton_delta_rule
from weft.ops.triton import library
from weft.ops.triton.delta_rule import DeltaRulePlan

REASON = library.why_not()
assert REASON is None, f"the tests need Triton, which the extra dev installs: {REASON}"
ON_GPU = not library.interpreted()
DEVICE = "cuda" if ON_GPU else "cpu"
BOUND = 5e-5
"""Relative to the largest entry: sums of some hundred terms in float32, each rounded to 6e-8, of which a triangular
system makes a few times as much. The gradient of a decay is a sum of differences."""
KINDS = ("none", "constant", "token", "by feature", "feature")
LENGTH = {kind: triton_delta_rule.BY_FEATURE.chunk + 3 if kind in ("by feature", "feature")
          else triton_delta_rule.BY_HEAD.chunk + 3 for kind in KINDS}
"""Tokens of a chunk and a rest."""
REAL = {"gated delta net": (2, 2048, 6, 128, 128), "rwkv-7": (2, 2048, 12, 64, 64), "odd": (1, 500, 3, 96, 130)}
SHAPES = {kind: REAL if ON_GPU else {"small": (1, LENGTH[kind], 1, 3, 5)} for kind in KINDS}
"""Rows, tokens, heads, features of a key and of a value: on a GPU those of real models."""


def call(shape: tuple[int, ...], kind: str, strength: float = 0.3) -> DeltaRuleCall:
    """As of a network: keys of length 1, of which nearly what was read is taken away at a rate of 0 to 1."""
    rows, steps, heads, e, f = shape
    generator = torch.Generator().manual_seed(0)

    def make(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator)

    sizes = {"constant": (1, 1, heads, 1), "token": (rows, steps, heads, 1), "by feature": (1, 1, heads, e),
             "feature": (rows, steps, heads, e)}
    decay = -strength * make(*sizes[kind]).square() if kind in sizes else None
    a = normalize(make(rows, steps, heads, e), dim=-1)
    b = -make(rows, steps, heads, 1).sigmoid() * normalize(a + make(rows, steps, heads, e) / 10, dim=-1)
    tensors = (make(rows, steps, heads, e), normalize(make(rows, steps, heads, e), dim=-1),
               make(rows, steps, heads, f), a, b, decay, make(rows, heads, e, f))
    return fresh(DeltaRuleCall(*tensors))


def fresh(x: DeltaRuleCall, dtype: torch.dtype = torch.float32) -> DeltaRuleCall:
    return DeltaRuleCall(*(None if each is None else each.detach().to(DEVICE, dtype).requires_grad_() for each in x))


def results(x: DeltaRuleCall, form: str) -> list[Tensor]:
    y, after = DELTA_RULE(x, form)
    slopes = torch.autograd.grad(y.sin().sum() + after.sin().sum(), [each for each in x if each is not None])
    return [y.detach(), after.detach(), *slopes]


def require_near(x: DeltaRuleCall, bound: float = BOUND) -> None:
    for got, expected in zip(results(x, "triton"), results(fresh(x, torch.float64), "reference"), strict=True):
        assert got.isfinite().all()
        assert (got.double() - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize(("kind", "shape"), [(kind, shape) for kind in KINDS for shape in SHAPES[kind].values()],
                         ids=[f"{kind}-{name}" for kind in KINDS for name in SHAPES[kind]])
def test_it_equals_the_steps(kind: str, shape: tuple[int, ...]) -> None:
    require_near(call(shape, kind))


@pytest.mark.parametrize(("kind", "plan"), [
    ("token", DeltaRulePlan(16, side=16)), ("feature", DeltaRulePlan(16, side=16)), ("feature", DeltaRulePlan(64))],
    ids=["runs of 16", "runs of 16 by feature", "quarters"])
def test_every_way_to_cut_the_work_gives_the_same(kind: str, plan: DeltaRulePlan,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles of features, the last of them in part; several chunks, of one run; and one of four."""
    monkeypatch.setattr(triton_delta_rule, "plan_of", lambda log_decay, before: plan)
    shape = (1, 17, 1, 17, 33) if plan.chunk == 16 else (1, 49, 1, 3, 4)
    require_near(call(shape, kind))


@pytest.mark.parametrize("kind", ["token", "feature"])
def test_decays_of_any_strength_and_documents(kind: str) -> None:
    """Decays down to exp(-10^4) beside some that keep nearly all; documents that begin within a chunk and beside its
    border, and within a run of 16 tokens and beside its border."""
    x = call((1, LENGTH[kind], 1, 3, 4), kind, strength=1e4)
    assert x.log_decay is not None
    place = torch.arange(LENGTH[kind], device=DEVICE)[:, None, None]
    begins = (place == 5) | (place == 16) | (place == 31) | (place == 32) | (place == LENGTH[kind] - 3)
    decay = torch.where((place % 3 == 0) & (place > 5), x.log_decay, x.log_decay / 1e5)
    decay = decay.masked_fill(place == 7, 0).masked_fill(begins, float("-inf"))
    require_near(fresh(x._replace(log_decay=decay, a=(x.a * decay.exp()).masked_fill(begins, 0))))


def test_equal_keys_at_the_largest_rate_do_not_lose_digits() -> None:
    """Reflections of one key: the triangular system has entries of 2 everywhere, whose powers reach 10^18."""
    x = call((1, LENGTH["none"], 1, 3, 5), "none")
    key = x.a[:, :1].expand_as(x.a)
    x = fresh(x._replace(a=key, k=2 * key, b=-2 * key))
    with torch.no_grad():
        got, expected = DELTA_RULE(x, "triton")[0], DELTA_RULE(fresh(x, torch.float64), "reference")[0]
    assert (got.double() - expected).abs().max() <= BOUND * expected.abs().max()


def test_tokens_that_are_not_taken_leave_the_state_as_it_was() -> None:
    x = call((2, 6, 1, 3, 4), "token")
    valid = (torch.arange(6) < torch.tensor([4, 0])[:, None]).to(DEVICE)
    short = DeltaRuleCall(*(None if each is None else each[:1, :4] for each in x[:6]), x.before[:1])
    with torch.no_grad(), forced({"delta_rule": "triton"}):
        after, expected = delta_rule(*x, None, valid)[1], delta_rule(*short)[1]
    assert torch.equal(after[:1], expected)
    assert torch.equal(after[1], x.before[1])


def test_a_call_gives_the_same_bits_every_time_also_where_it_is_compiled() -> None:
    """Inside a graph its shapes are known from fake tensors."""
    x = call((1, 3, 2, 3, 4), "feature")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: DELTA_RULE(x, "triton"), fullgraph=True, backend="aot_eager")
    found = compiled(x)
    slopes = torch.autograd.grad(found[0].sin().sum() + found[1].sin().sum(), [each for each in x if each is not None])
    assert all(map(torch.equal, [*found, *slopes], results(x, "triton")))


@pytest.mark.parametrize("kind", ["none", "feature"])
def test_the_operator_is_well_formed(kind: str) -> None:
    found = torch.library.opcheck(torch.ops.weft.triton_delta_rule.default, tuple(call((1, 2, 2, 3, 4), kind)),
                                  test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    assert set(found.values()) == {"SUCCESS"}


def test_the_backward_pass_keeps_its_arguments_and_no_states() -> None:
    x, kept = call((1, 3, 1, 3, 4), "feature"), list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        DELTA_RULE(x, "triton")
    assert sum(each.numel() for each in kept) == sum(each.numel() for each in x if each is not None)


@pytest.mark.parametrize("kind", ["none", "feature"])
def test_it_is_counted_as_the_products_of_the_chunks_in_pytorch(kind: str) -> None:
    x = tuple(call((1, 9, 2, 3, 4), kind))
    above = (x[2], x[6])
    assert flops_of(torch.ops.weft.triton_delta_rule, x, None) == flops_of(torch.ops.weft.delta_rule, x, None) > 0
    assert flops_of(torch.ops.weft.triton_delta_rule_backward, (*above, *x), None) == flops_of(
        torch.ops.weft.delta_rule_backward, (*above, *x), None) > 0


@pytest.mark.parametrize(("changes", "reason"), [
    ({"before": torch.ones(1, 2, 3, 4).double()}, "its tensors are of several dtypes"),
    ({name: torch.ones(0, 9, 2, 3) for name in "qkvab"}, "there are no rows or no features"),
    ({name: torch.ones(1, 9, 2, 257) for name in "qkab"}, "a key has more than 256 features"),
    ({name: torch.ones(1, 9, 2, 3).double() for name in "qkvab"}, "it runs only in float32"),
])
def test_why_a_call_is_not_served(changes: dict[str, Any], reason: str) -> None:
    plain = DeltaRuleCall(*(torch.ones(1, 9, 2, 3) for _ in range(5)), None, torch.ones(1, 2, 3, 3))
    moved = [None if each is None else each.to(DEVICE) for each in plain._replace(**changes)]
    with pytest.raises(UnsupportedError, match=f"kernels.delta_rule: the form 'triton' .* this call: {reason}"):
        DELTA_RULE(DeltaRuleCall(*moved), "triton")
