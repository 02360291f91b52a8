"""Every registered part on a GPU: the laws hold there, and outputs, states and gradients are those of the CPU.

`make test-gpu` runs these; `make test` needs no GPU and leaves them out.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from weft.core.part_config import PartConfig
from weft.core.span import Span
from weft.laws import LAWS, every_example, examine, subject_of
from weft.laws.subject import Subject

CUDA = torch.device("cuda")
BOUND = 1e-9
"""float64 rounds at 1e-16; sums are taken in another order, and outputs and gradients here are of order 1 to 100."""

EXAMPLES = [pytest.param(name, config, id=name) for name, config in every_example()]


def on_both(name: str, config: PartConfig) -> tuple[Subject, Subject] | None:
    """The same part on the CPU and on the GPU."""
    torch.manual_seed(0)
    subject = subject_of(config, name)
    return None if subject is None else (subject, subject.remake(copy.deepcopy(subject.module).to(CUDA)))


@pytest.mark.parametrize(("name", "config"), EXAMPLES)
def test_laws_hold(name: str, config: PartConfig) -> None:
    pair = on_both(name, config)
    if pair is None:
        return
    report = examine(pair[1], laws=tuple(law for law in LAWS if law != "compile"))
    assert report.holds, "\n".join(str(finding) for finding in report.broken()[:10])


@pytest.mark.parametrize(("name", "config"), EXAMPLES)
def test_outputs_and_gradients_are_those_of_the_cpu(name: str, config: PartConfig) -> None:
    pair = on_both(name, config)
    if pair is None:
        return
    here, there = (computed(subject) for subject in pair)
    assert set(here) == set(there)
    for what, value in here.items():
        assert_same(what, there[what], value)


def computed(subject: Subject) -> dict[str, Tensor]:
    """Outputs of whole and packed rows, of pieces, and the gradients of both calls' sum, on the CPU."""
    generator = torch.Generator().manual_seed(0)
    x, memory = subject.inputs(2, subject.steps, generator), subject.memory(2, generator)
    begins = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    begins[0, 3] = begins[1, 0] = begins[1, -2] = True
    found = {"whole": subject.whole(x, memory).y, "packed": subject.whole(x, memory, Span(begins=begins)).y}
    parameters = [(path, each) for path, each in subject.module.named_parameters() if each.requires_grad]
    if subject.differentiable and parameters:
        total = (found["whole"].cos() + found["packed"].sin()).sum()
        grads = torch.autograd.grad(total, [each for _, each in parameters], allow_unused=True)
        found |= {f"gradient of {path}": grad for (path, _), grad in zip(parameters, grads, strict=True)
                  if grad is not None}
    if subject.stateful:
        state = subject.start(2, memory, subject.steps, subject.steps)
        for place, piece in enumerate(x.split([4, 1, subject.steps - 5], dim=1)):
            with torch.no_grad():
                out = subject.call(piece, state, Span())
            assert out.state is not None, "a call with a state returns one"
            state, found[f"piece {place}"] = out.state, out.y
    return {what: value.detach().cpu() for what, value in found.items()}


def assert_same(what: str, actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(actual, wanted, rtol=BOUND, atol=BOUND, msg=lambda text: f"{what}: {text}")
