"""Every part under the transforms of `torch.func`, and differentiated twice: gradients, gradients of single samples,
second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from weft.core.model import Encoder, EncoderInputs
from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY
from weft.core.span import Memory, Span
from weft.laws import subject_of
from weft.laws.subject import Subject
from weft.ops.linear import LINEAR, LinearCall, linear
from weft.ops.linear_cross_entropy import linear_cross_entropy
from weft.ops.linear_log_prob import linear_log_prob

STEPS = 4
EXACT = {"rtol": 1e-9, "atol": 1e-11}
"""float64, summed in another order; scans, convolutions and attention take other forms."""

Parameters = dict[str, Tensor]


def subjects() -> Iterator[Any]:
    """The first example of every registered part that has gradients."""
    for part in REGISTRY.parts():
        config = part.examples()[0]
        subject = subject_of(config, part.kind)
        if subject is not None and subject.differentiable:
            yield pytest.param(config, id=f"{part.group} {part.kind}")


PARTS = list(subjects())


def small(config: PartConfig) -> tuple[Subject, Parameters, Tensor, Tensor | None]:
    """The part, its parameters, three inputs and what cross-attention reads beside each."""
    torch.manual_seed(0)
    subject = subject_of(config, config.kind)
    assert subject is not None
    generator = torch.Generator().manual_seed(0)
    memory = subject.memory(3, generator)
    parameters = {name: p.detach() for name, p in subject.module.named_parameters()}
    return subject, parameters, subject.inputs(3, STEPS, generator), None if memory is None else memory.h.detach()


def loss(subject: Subject, parameters: Parameters, x: Tensor, source: Tensor | None) -> Tensor:
    """A number that every output and every auxiliary loss enters."""
    span = Span(memory=None if source is None else Memory(source))
    args: Any = (EncoderInputs.of(x),) if isinstance(subject.module, Encoder) else (x, None, span)
    out = functional_call(subject.module, parameters, args)
    y, losses = (out, ()) if isinstance(out, Tensor) else (out.y, out.losses)
    return y.square().sum() + sum(each.value for each in losses)


def plain_gradient(subject: Subject, parameters: Parameters, x: Tensor, source: Tensor | None) -> Parameters:
    leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    found = torch.autograd.grad(loss(subject, leaves, x, source), list(leaves.values()), allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(leaves.items(), found, strict=True)}


@pytest.mark.parametrize("config", PARTS)
def test_the_gradient_is_autograds(config: PartConfig) -> None:
    subject, parameters, x, source = small(config)
    found = grad(lambda p: loss(subject, p, x, source))(parameters)
    assert_close(found, plain_gradient(subject, parameters, x, source), **EXACT)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("config", PARTS)
def test_gradients_of_single_samples_are_those_of_each_alone(config: PartConfig) -> None:
    subject, parameters, x, source = small(config)

    def alone(p: Parameters, row: Tensor, own: Tensor | None) -> Tensor:
        return loss(subject, p, row[None], None if own is None else own[None])

    found = vmap(grad(alone), in_dims=(None, 0, None if source is None else 0))(parameters, x, source)
    for row in range(len(x)):
        wanted = plain_gradient(subject, parameters, x[row:row + 1], None if source is None else source[row:row + 1])
        assert_close({name: g[row] for name, g in found.items()}, wanted, **EXACT)


def along(config: PartConfig) -> Callable[[Tensor], Tensor]:
    """The loss as a function of two steps [2] along fixed directions in all parameters."""
    subject, parameters, x, source = small(config)
    generator = torch.Generator().manual_seed(1)
    ways = {name: 0.3 * torch.randn(2, *p.shape, generator=generator, dtype=p.dtype) for name, p in parameters.items()}

    def at(steps: Tensor) -> Tensor:
        return loss(subject, {name: p + torch.tensordot(steps, ways[name], 1) for name, p in parameters.items()}, x,
                    source)

    return at


def by_differences(function: Callable[[Tensor], Tensor], step: float = 1e-5) -> Tensor:
    """Second derivatives at zero from first ones nearby."""
    def slope(at: Tensor) -> Tensor:
        leaf = at.clone().requires_grad_()
        return torch.autograd.grad(function(leaf), leaf)[0]

    shifts = step * torch.eye(2, dtype=torch.float64)
    return torch.stack([(slope(shift) - slope(-shift)) / (2 * step) for shift in shifts])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("error:.*autograd kernel was not registered")
@pytest.mark.parametrize("config", PARTS)
def test_second_derivatives_are_those_of_differences_of_first_ones(config: PartConfig) -> None:
    function = along(config)
    # Differences lose half of float64's digits; the second derivatives are sums over all outputs.
    wanted = by_differences(function)
    close = {"rtol": 1e-5, "atol": 1e-6 * float(wanted.abs().max())}
    zero = torch.zeros(2, dtype=torch.float64)
    assert_close(hessian(function)(zero), wanted, **close)
    with sdpa_kernel(SDPBackend.MATH):  # PyTorch differentiates its fused attention once
        assert_close(torch.autograd.functional.hessian(function, zero), wanted, **close)


def test_every_group_of_parts_is_among_them() -> None:
    groups = {param.id.split()[0] for param in PARTS}
    assert groups >= {"mixer", "feedforward", "norm", "block", "position", "readout", "model"}


def test_the_losses_of_a_readout_are_differentiated_by_sample() -> None:
    generator = torch.Generator().manual_seed(0)
    h, weight = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 2, 5), (7, 5)))
    targets = torch.randint(7, (3, 2), generator=generator)
    every = torch.ones(2, dtype=torch.bool)

    def fused(weight: Tensor, h: Tensor, targets: Tensor) -> Tensor:
        return linear_cross_entropy(h[None], weight, None, targets[None], every[None], smoothing=0.1, z_loss=0.2,
                                    softcap=3.0).loss

    def pieces(weight: Tensor, h: Tensor, targets: Tensor) -> Tensor:
        return linear_log_prob(h[None], weight, None, targets[None], chunk_entries=7).sum()

    for function in (fused, pieces):
        found = vmap(grad(function), in_dims=(None, 0, 0))(weight, h, targets)
        for row in range(3):
            leaf = weight.clone().requires_grad_()
            wanted, = torch.autograd.grad(function(leaf, h[row], targets[row]), leaf)
            assert_close(found[row], wanted, **EXACT)


def test_linear_maps_whose_products_are_wide_are_differentiated_by_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.ops.linear.lacks_bfloat16", lambda: True)
    x, weight = torch.randn(3, 2, 5).bfloat16(), torch.randn(4, 5).bfloat16()
    found = vmap(grad(lambda w, row: linear(row, w).float().square().sum()), in_dims=(None, 0))(weight, x)
    leaf = weight.clone().requires_grad_()
    assert LINEAR.choose(LinearCall(x[1], leaf)).form.name == "wide"
    wanted, = torch.autograd.grad(linear(x[1], leaf).float().square().sum(), leaf)
    assert_close(found[1], wanted, rtol=2e-2, atol=2e-2)  # each is rounded to eight bits once or twice


def test_dropout_is_drawn_for_each_sample_as_vmap_is_told() -> None:
    block = REGISTRY.get(("block",), "pre").model_validate({"layers": ["gru"], "dropout": 0.5})
    subject, parameters, x, source = small(block)
    subject.module.train()
    rows = x[:1].expand(2, -1, -1)
    first, second = vmap(lambda row: loss(subject, parameters, row[None], source), randomness="different")(rows)
    assert first != second
