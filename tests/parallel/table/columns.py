"""The columns of the equivalence table: each a way to train, with the course of one process that it must follow."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parallel.table.courses import Cell, Step, advanced, apart, trained
from parallel.table.subjects import CONTEXT, ROWS, VOCABULARY, fresh_model, mixers, run_of, text
from weft.core.model import LanguageModel
from weft.core.part_config import PartConfig
from weft.core.span import WHOLE, Span
from weft.linear.merging import merged
from weft.training.parallel import World
from weft.training.trainer import Trainer

Measure = Callable[[PartConfig, World | None, int], Cell]
LENGTHS = ((5, 3, 4), (7, 5), (12,), (1, 6, 2, 3))
"""Documents of each packed row."""


class Column(NamedTuple):
    """A column.

    Attributes:
        name: its heading.
        measure: from a mixer, the processes and the number of steps to a cell.
        processes: that it needs.
        what: one line for the page.
    """

    name: str
    measure: Measure
    processes: int
    what: str


def alike(training: dict[str, Any]) -> Measure:
    """The same run with other settings of training, which must not change its course."""
    def measure(mixer: PartConfig, world: World | None, steps: int) -> Cell:
        other = run_of(mixer, steps=steps, training=training)
        return apart(trained(other, world=world, steps=steps), alone(mixer.kind, steps))

    return measure


@cache
def alone(kind: str, steps: int) -> list[Step]:
    """The course of one process that several columns follow."""
    mixer = mixers()[kind]
    assert isinstance(mixer, PartConfig)
    return trained(run_of(mixer, steps=steps), steps=steps)


def packed(mixer: PartConfig, _: World | None, steps: int) -> Cell:
    """Documents packed into rows, against each document in a row of its own."""
    tokens = torch.randint(VOCABULARY, (steps, ROWS, CONTEXT + 1), generator=torch.Generator().manual_seed(1))
    begins = torch.zeros(ROWS, CONTEXT, dtype=torch.bool)
    documents = []
    for row, lengths in enumerate(LENGTHS):
        ends = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
        begins[row, ends[1:-1]] = True
        documents += [(row, slice(start, stop)) for start, stop in pairwise(ends)]
    count = torch.tensor([place.stop - place.start for _, place in documents])

    def apart_rows(x: Tensor) -> Tensor:
        rows = x.new_zeros(len(documents), CONTEXT)
        for own, (row, place) in zip(rows, documents, strict=True):
            own[:place.stop - place.start] = x[row, place]
        return rows

    def course(arranged: Callable[[Tensor], Tensor], span: Span) -> list[Step]:
        valid = torch.arange(CONTEXT) < (torch.tensor([CONTEXT]) if span.count is None else span.count)[:, None]
        return descended(mixer, [(arranged(x[:, :-1]), arranged(x[:, 1:]), valid) for x in tokens], span)

    return apart(course(lambda x: x, Span(begins=begins)), course(apart_rows, Span(count=count)))


def compiled(mixer: PartConfig, _: World | None, steps: int) -> Cell:
    """The loss and its gradient as one traced and decomposed graph, which PyTorch's own kernels compute."""
    tokens = torch.randint(VOCABULARY, (steps, ROWS, CONTEXT + 1), generator=torch.Generator().manual_seed(1))
    counted = torch.ones(ROWS, CONTEXT, dtype=torch.bool)
    batches = [(x[:, :-1].contiguous(), x[:, 1:].contiguous(), counted) for x in tokens]
    torch._dynamo.reset()
    traced = torch.compile(_loss, fullgraph=True, dynamic=False, backend="aot_eager")
    return apart(descended(mixer, batches, WHOLE, traced), descended(mixer, batches, WHOLE))


def descended(mixer: PartConfig, batches: list[tuple[Tensor, Tensor, Tensor]], span: Span,
              loss_of: Callable[..., Tensor] | None = None) -> list[Step]:
    """A course on given ids, targets and which of them count; ``loss_of``: None: `_loss`."""
    config = run_of(mixer)
    model: Any = fresh_model(config).double()
    optimizer, course = config.training.optimizer.create(model), []
    for inputs, targets, counted in batches:
        optimizer.zero_grad()
        loss = (loss_of or _loss)(model, inputs, targets, counted, span)
        loss.backward()
        course.append(Step(loss.item(), {name: torch.zeros_like(own) if own.grad is None else own.grad.clone()
                                         for name, own in model.named_parameters()}))
        optimizer.step()
    return course


def _loss(model: LanguageModel, inputs: Tensor, targets: Tensor, counted: Tensor, span: Span) -> Tensor:
    nats = model.readout.log_prob(model.hidden(inputs, None, span).y, targets)
    return -torch.where(counted, nats, 0.0).sum() / counted.expand_as(nats).sum()


def resumed_twice(mixer: PartConfig, _: World | None, steps: int) -> Cell:
    """A run that is stopped twice, and goes on from what its checkpoint holds."""
    config = run_of(mixer, steps=steps)

    def started(model: Any) -> Trainer:
        return Trainer(config, model, text(steps), steps=steps, device="cpu")

    trainer, course = started(fresh_model(config)), []
    for step in range(steps):
        if step in (steps // 3, 2 * steps // 3):
            held, weights = deepcopy(trainer.tensors()), deepcopy(trainer.model.state_dict())
            model = fresh_model(config).double()
            model.load_state_dict(weights)
            trainer = started(model)
            trainer.resume(held, step=step, seconds=0.0, where="the table")
        course.append(advanced(trainer))
    return apart(course, alone(mixer.kind, steps))


def merged_adapters(mixer: PartConfig, _: World | None, steps: int) -> Cell:
    """A model whose adapters are trained, against the model with the adapters merged, at every step."""
    config = run_of(mixer, steps=steps, rewrites=[{"kind": "lora", "rank": 2}])
    trainer = Trainer(config, fresh_model(config), text(steps), steps=steps, device="cpu")
    course, alone = [], []
    for step in range(steps):
        trainer.advance()
        batch = torch.randint(VOCABULARY, (ROWS, CONTEXT + 1), generator=torch.Generator().manual_seed(step))
        one = merged(trainer.model)
        common = sorted(dict(one.named_parameters()).keys() & dict(trainer.model.named_parameters()).keys())
        for steps_of, model in ((course, trainer.model), (alone, one)):
            steps_of.append(_examined(model, common, batch))
    return apart(course, alone)


def _examined(model: Any, names: list[str], batch: Tensor) -> Step:
    """The loss and the gradients of some parameters, of those that are not trained too."""
    weights = {name: weight for name, weight in model.named_parameters() if name in names}
    frozen = [weight for weight in weights.values() if not weight.requires_grad]
    for weight in frozen:
        weight.requires_grad_(True)
    loss = _loss(model.eval(), batch[:, :-1], batch[:, 1:], torch.ones(ROWS, CONTEXT, dtype=torch.bool), WHOLE)
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True, materialize_grads=True)
    for weight in frozen:
        weight.requires_grad_(False)
    return Step(loss.item(), dict(zip(weights, found, strict=True)))


COLUMNS = (
    Column("accumulate", alike({"batch_size": ROWS // 2, "accumulation": 2}), 1, "two batches of half the rows a step"),
    Column("pack", packed, 1, "documents packed into rows, against each in a row of its own"),
    Column("resume twice", resumed_twice, 1, "stopped after a third and two thirds, and resumed"),
    Column("DDP", alike({"mesh": {"replicate": 2}}), 2, "each process has half of the rows"),
    Column("FSDP2", alike({"mesh": {"shard": 2}}), 2, "each process stores half of every parameter"),
    Column("TP", alike({"mesh": {"tensor": 2}}), 2, "each process has half of the heads, channels and ids"),
    Column("CP", alike({"mesh": {"context": 2}}), 2, "each process has half of the tokens of every row"),
    Column("recompute", alike({"compute": {"matmul": "default", "checkpoint_activations": True}}), 1,
           "blocks are run again for the backward pass"),
    Column("compile", compiled, 1, "forward and backward traced by `torch.compile` as one graph, decomposed, and "
           "computed by PyTorch's own kernels (`aot_eager`)"),
    Column("LoRA-merge", merged_adapters, 1, "adapters beside the maps, against merged ones, at every step"),
)
