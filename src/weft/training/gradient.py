"""From batches to gradients. `torch.compile` for the training pass, with an error message that gives the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from weft.core.compiling import compiler_errors, sparing_compilers
from weft.core.declarations import Trait
from weft.core.layer import traits_of
from weft.core.model import Model, ModelState
from weft.parallel.context import BatchPart, Context, part_of
from weft.tasks import AnyTask, BatchSums, Count, Rows, SourcedRows
from weft.tasks.base import on_device
from weft.training.parallel import World
from weft.training.parameter_groups import blocks_of
from weft.training.sources import SourceSums

Around: TypeAlias = Callable[[], AbstractContextManager[None]]
Forward: TypeAlias = Callable[[Any, ModelState | None], BatchSums]
"""The task's loss under one model: a batch as tensors, and the state before it."""


Sourced: TypeAlias = tuple[SourcedRows | None, Tensor | None]
"""The rows of a batch of a mixture, and the nats of each."""


class BatchTotals(NamedTuple):
    """Sums over the batches of a step. ``tokens``: predictions, of the task's unit; ``loss``: what was differentiated,
    auxiliary losses included; ``sources``: by source, for a mixture; ``lost``: nats for text that predictions do not
    tell."""

    nats: float
    tokens: int
    bytes: int
    loss: float
    sources: SourceSums | None = None
    lost: float = 0.0


def forward_of(task: AnyTask, model: Model) -> Forward:
    """The task's loss under ``model`` as one function of tensors, which can be compiled."""
    def forward(columns: Any, state: ModelState | None) -> BatchSums:
        return task.loss(model, columns, state)

    return forward


def add_gradients(task: AnyTask, model: Model, batches: Sequence[Rows[Any]], state: ModelState | None, *,
                  device: torch.device | str, forward: Forward | None = None, world: World | None = None,
                  collect: Callable[[], object] = lambda: None, sources: int = 0, context: Context | None = None,
                  around: Around = nullcontext, begun: Callable[[], object] = lambda: None
                  ) -> tuple[BatchTotals, ModelState | None]:
    """Add to the parameters' gradients the gradient of

        L = 1/N sum (loss of each prediction) + sum_i (N_i / N) (auxiliary losses of batch i)

    with N the number of predictions in all batches of all ranks and N_i that of batch i. The sums that are returned are
    over all ranks; the gradients are of this rank's batches alone, see `weft.training.exchange`.

    Args:
        batches: of one step, this rank's rows of each.
        state: after the previous batch, for a task whose rows continue from batch to batch; no gradient flows into it.
        forward: `forward_of` the model, compiled or not; None: not compiled.
        world: the ranks that share the step; None: this process alone.
        sources: of the mixture that the batches are of; 0: they are of one text.
        collect: called after every backward pass, where gradients are added up elsewhere (`Precision`).
        context: the ranks that have the same rows, and compute a piece of them each; None: this one computes them.
        around: the context of every forward and of every backward pass, `compiling` where they are compiled.
        begun: called when a GPU has been given all passes and may still compute; only then are sums read.
    """
    world = World(torch.device(device)) if world is None else world
    run = forward_of(task, model) if forward is None else forward
    counts = [batch.count for batch in batches]
    parts = 1 if context is None else context.line.count  # each of these ranks counts the predictions of whole rows
    tokens, size, lost = _sizes(counts, world, parts)
    total, unread, found = max(1, tokens), list[tuple[Tensor, Tensor]](), list[Sourced]()
    for batch, count in zip(batches, counts, strict=True):
        state = task.settings.first_state(model, count.rows, device) if count.fresh or state is None else state
        with part_of(context, model, on_device(batch.columns, device), state) as part:
            scored, objective = _differentiated(run, part, count.predictions / parts, total, around)
        collect()
        state = None if scored.state is None or context is not None else scored.state.detach()
        unread.append((scored.nats.detach(), objective.detach()))
        found.append((count.sources, scored.by_row))
    begun()
    nats, loss = world.total(*(sum(each.item() for each in column) for column in zip(*unread, strict=True)))
    return BatchTotals(nats, tokens, size, loss, _by_source(found, sources, world) if sources else None, lost), state


def _by_source(read: Sequence[Sourced], sources: int, world: World) -> SourceSums:
    found = SourceSums.none(sources)
    for rows, by_row in read:
        found.add(rows, by_row)
    return found.of_all(world)


def _sizes(counts: Sequence[Count], world: World, parts: int) -> tuple[int, int, float]:
    """The predictions, bytes and nats of lost text of a step, of all ranks, each batch counted by ``parts`` of them."""
    predictions, size, lost = world.total(sum(count.predictions for count in counts),
                                          sum(count.bytes for count in counts), sum(count.lost for count in counts))
    return round(predictions / parts), round(size / parts), lost / parts


def _differentiated(run: Forward, part: BatchPart, predictions: float, total: int,
                    around: Around) -> tuple[BatchSums, Tensor]:
    """The sums of a batch, or of a piece of it, and its part of L after its backward pass."""
    with around():
        scored = run(part.given, part.state)
    objective = part.closed(_objective(scored, predictions, total))
    with around():  # another one: PyTorch's tracing of the forward pass puts `deterministic` back
        objective.backward()
    return scored, objective


def _objective(scored: BatchSums, predictions: float, total: int) -> Tensor:
    """The part of L of one batch, or of a piece of it, where ``total`` is N."""
    share = predictions / total
    objective = scored.loss / total
    for extra in scored.losses:
        objective = objective + share * extra.value
    return objective


def compiled(forward: Forward, *, backend: str = "inductor") -> Forward:
    """Compile ``forward`` for fixed shapes. It is called inside `compiling`, and so is its backward pass. Compilation
    takes half a minute in the first step, and once more when a batch with documents that begin inside a row follows one
    without, or the other way round.

    Args:
        backend: of `torch.compile`; "aot_eager" traces the same graphs and compiles no code.
    """
    fast: Forward = torch.compile(forward, dynamic=False, backend=backend)
    return fast


class CompiledBlocks:
    """A context like `compiling` in which every block of a model is compiled by itself, equal ones once, which takes a
    few seconds. Elsewhere, such as in an evaluation, the blocks run as they are. A block that reads values on the host
    to choose its operations is left as it is."""

    def __init__(self, model: Model, *, backend: str = "inductor") -> None:
        def run(block: nn.Module, *given: Any) -> Any:
            return block._call_impl(*given)

        # torch.compile caches its graphs per code object, up to a limit: each model has one of its own.
        run.__code__ = run.__code__.replace()
        fast = torch.compile(run, dynamic=False, backend=backend)
        self._blocks = [(block, partial(fast, block)) for stack in blocks_of(model) for block in stack
                        if Trait.HOST_CHOICE not in traits_of(block)]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        for block, compiled in self._blocks:
            block._compiled_call_impl = compiled
        try:
            with compiling():
                yield
        finally:
            for block, _ in self._blocks:
                block._compiled_call_impl = None


@contextmanager
def compiling() -> Iterator[None]:
    """A context for a forward pass that is `compiled` and one for its backward pass, which is compiled when it first
    runs. Raises `UnsupportedError`: this model cannot be compiled on this machine."""
    from torch._dynamo import config as tracing
    from torch._functorch import config as partitioning
    from torch._inductor import config as inductor

    # Allows the partitioner to recompute element-wise results in the backward pass even where a matrix product
    # needs them: an eighth less memory on the benchmark's model (without a compiler: `ops.rematerialize`).
    # "deterministic": otherwise Inductor chooses kernels by timing them, and another process may choose others,
    # which round otherwise.
    # "skip_fwd_side_effects...": what a block that is run again receives from other processes, it receives once.
    with (compiler_errors("training.compute.compile"), sparing_compilers(), inductor.patch(deterministic=True),
          tracing.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True),
          partitioning.patch(ban_recompute_materialized_backward=False)):
        yield
