"""Steps of decoding as CUDA graphs: all kernels of a step are started by one call from the host.

A graph is a list of kernels with the addresses that they read and write, so whatever differs from step to step lies in
static buffers: the tokens that come in, and the tensors of the state. What a step writes in place stays where it is;
what it returns as a new tensor is copied into the buffer of the old one, inside the graph. Nothing in a step may be
read on the host. A step of which that is not so is refused by CUDA while it is captured, or beforehand where a tape
knows it, and runs without a graph, with the reason in words.

The steps before the capture are ordinary ones, which compile and load all kernels, so no step is run for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, final

import torch
from torch import Tensor

from weft.core.errors import UnsupportedError
from weft.core.model import ModelState
from weft.core.state import map_together

Run = Callable[..., Sequence[Tensor]]
"""A function of tensors that returns tensors."""
Step = Callable[[Tensor, ModelState], tuple[Tensor, ModelState]]
"""Returns the logits [B,V] after one more token [B] in every row, and the new state; consumes the state passed in."""
PATIENCE = 2
"""Ordinary steps of a compiled step before its capture: a compiler may compile its second call again."""


NO_GRAPHS = "this device has no CUDA graphs"


class Graph(Protocol):
    """Work that is recorded once and done again at every replay."""

    def capture(self, work: Callable[[], None]) -> None:
        """Record what ``work`` starts, without doing it. Raises `RuntimeError`: it cannot be recorded."""

    def replay(self) -> None:
        """Do the recorded work on what now lies in the tensors that it reads."""


@final
class CudaGraph:
    """A `torch.cuda.CUDAGraph`, whose results lie in a memory pool of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._graph = device, torch.cuda.CUDAGraph()

    def capture(self, work: Callable[[], None]) -> None:
        """Record the kernels that ``work`` starts. Raises `RuntimeError`: CUDA refuses one of its calls."""
        # Only this thread's calls count: others may go on using the card while a server captures a step.
        with torch.cuda.device(self._device), torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            work()

    def replay(self) -> None:
        """Start all kernels at once, on the current stream, without a wait for them."""
        with torch.cuda.device(self._device):
            self._graph.replay()


def graph_on(device: torch.device) -> Graph | None:
    """A new graph on a device; None where there are no graphs."""
    return CudaGraph(device) if device.type == "cuda" else None


@final
class GraphedStep:
    """A function of tensors as a graph, with the same results: the first result, and new values of some arguments.

    Args:
        run: takes ``given`` tensors and then those that each call passes on to the next, and returns one result and the
            latter's new values, which have the same shapes.
        given: number of arguments that have no new value.
        graph: not yet captured; None: there is none.
        obstacle: why the function cannot be captured, where that is known.

    Attributes:
        obstacle: why there is no graph, in words; None: there is one, or the function was not called yet.
    """

    def __init__(self, run: Run, given: int, graph: Graph | None, obstacle: str | None) -> None:
        self._run, self._given, self._graph = run, given, graph
        self._buffers = list[Tensor]()
        self._result: Tensor | None = None
        self.obstacle = NO_GRAPHS if graph is None else obstacle

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        if self.obstacle is None and self._result is None:
            self._capture(inputs)
        if self.obstacle is not None or self._graph is None:
            return self._run(*inputs)
        filled(self._buffers, inputs)
        self._graph.replay()
        assert self._result is not None, "the capture sets it"
        return [self._result.clone(), *self._buffers[self._given:]]

    def _capture(self, inputs: Sequence[Tensor]) -> None:
        # Filled before the capture, so that the kernels that copy are loaded when it begins.
        self._buffers = [torch.empty_like(each).copy_(each) for each in inputs]

        def work() -> None:
            self._result, *after = self._run(*self._buffers)
            carried(self._buffers[self._given:], after)

        assert self._graph is not None, "otherwise there is an obstacle"
        self.obstacle = captured(self._graph, work)
        if self.obstacle is not None:
            self._buffers, self._result = [], None


def captured(graph: Graph, work: Callable[[], None]) -> str | None:
    """Capture ``work``; return why that cannot be, or None."""
    try:
        graph.capture(work)
    except (RuntimeError, UnsupportedError) as error:  # the second: what the compiler says of it
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None


def filled(buffers: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into buffers, except where they lie there already."""
    for buffer, value in zip(buffers, values, strict=True):
        if not same_place(buffer, value):
            buffer.copy_(value)


def carried(buffers: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy the new values of a step into the buffers that it read. A value that lies in one of them is copied aside
    first, since that one may be written before it is read."""
    held = {buffer.untyped_storage().data_ptr() for buffer in buffers}
    pairs = [pair for pair in zip(buffers, values, strict=True) if not same_place(*pair)]
    aside = [value.clone() if value.untyped_storage().data_ptr() in held else value for _, value in pairs]
    filled([buffer for buffer, _ in pairs], aside)


@final
class GraphedCall:
    """A step of a state as a graph (`Step`), such as a compiled one. The state that it returns has the same tensors at
    every step, those of the state that was captured, and is overwritten by the next one.

    Args:
        step: the step, all of whose rows advance.

    Attributes:
        obstacle: why there is no graph, in words; None: there is one, or there will be.
        captures: number of graphs so far; a step of other sizes needs another.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._graph: Graph | None = None
        self._state: ModelState | None = None
        self._buffers, self._tokens, self._result = list[Tensor](), torch.empty(0), torch.empty(0)
        self._wait, self.captures = PATIENCE, 0
        self.obstacle: str | None = None

    def __call__(self, tokens: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        if self.obstacle is None and not self._goes_on(tokens, state):
            self._graph, self._state = None, None
            if self._wait == 0:
                self._capture(tokens, state)
            self._wait = max(0, self._wait - 1)
        if self._graph is None or self._state is None:
            # Made here, as those of the graph are: a compiler compiles tensors of inference mode and others apart.
            return self._step(tokens.clone(), state)
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._result.clone(), self._state

    def _goes_on(self, tokens: Tensor, state: ModelState) -> bool:
        """Whether the graph can go on from a state, whose tensors are then in its buffers."""
        if self._state is None or tokens.shape != self._tokens.shape:
            return False
        if state is not self._state:
            if not alike(self._state, state):
                return False
            filled(self._buffers, tensors_of(state))
            self._state = self._with_buffers(state)
        return True

    def _with_buffers(self, state: ModelState) -> ModelState:
        buffers = iter(self._buffers)
        return state.map(lambda _, __: next(buffers))

    def _capture(self, tokens: Tensor, state: ModelState) -> None:
        graph = graph_on(tokens.device)
        if graph is None:
            self.obstacle = NO_GRAPHS
            return
        self._tokens, self._buffers = tokens.clone(), tensors_of(state)
        found = list[ModelState]()

        def work() -> None:
            # With a lease of its own: should the capture fail, the state itself is not consumed.
            before = map_together([state], lambda tensors, _: tensors[0], forks=True)
            self._result, after = self._step(self._tokens, before)
            if not alike(before, after):
                raise RuntimeError("its state has other sizes or facts after a step than before")
            carried(self._buffers, tensors_of(after))
            found.append(after)

        self.obstacle = captured(graph, work)
        if self.obstacle is None:
            self._graph, self._state = graph, self._with_buffers(found[-1])
            self._wait, self.captures = PATIENCE, self.captures + 1


def tensors_of(state: ModelState) -> list[Tensor]:
    """The state's tensors in the order in which `weft.core.state.State.map` visits them."""
    return [tensor for tensor, _ in state.tensors().values()]


def alike(before: ModelState, after: ModelState) -> bool:
    """Whether two states have equal facts, and tensors of equal shapes and dtypes."""
    old, new = tensors_of(before), tensors_of(after)
    if [(tensor.shape, tensor.dtype) for tensor in old] != [(tensor.shape, tensor.dtype) for tensor in new]:
        return False
    blank = torch.empty(0)
    return before.map(lambda _, __: blank) == after.map(lambda _, __: blank)


def same_place(old: Tensor, new: Tensor) -> bool:
    """Whether both are the same tensor or the same view of one storage."""
    return old is new or (old.data_ptr() == new.data_ptr() != 0 and old.shape == new.shape
                          and old.stride() == new.stride() and old.dtype == new.dtype)
