"""A recorded step as a function of its tensors, without Python code between the operations.

Results that are the same at every step are computed once, when the tape is built: views of buffers that the state keeps
writing to, and whatever depends on weights alone. Calls that several layers make with the same arguments run once a
step, and calls whose results nothing reads are removed. Consecutive operations that are written in C are one call
(`weft.decoding.native_calls`). The remaining operations are those of the step, in its order, so the results equal the
step's, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, final

from torch import Tensor

from weft.decoding.native_calls import in_c, joined
from weft.decoding.recording import Call, Recording, Ref, refs_in, storage_of
from weft.decoding.tape_sources import TapeOrigins


@final
class ChangedError(Exception):
    """A tensor that is converted to a bool has another truth value than when the step was recorded."""


def tape(recording: Recording, inputs: Sequence[Tensor], outputs: Sequence[Tensor], kept: Sequence[Tensor]) -> Tape:
    """Return a function that takes tensors in place of ``inputs`` and returns tensors in place of ``outputs``.

    Args:
        inputs: tensors that the step took and that differ from step to step.
        outputs: tensors that the step returned.
        kept: tensors that are the same objects at each step with changing contents: the step writes to them, or rows
            are written to them between steps.
    """
    taken = [recording.ref(tensor) for tensor in inputs]
    reduction = _Reduction(recording, taken, kept, outputs)
    for call in recording.calls:
        reduction.add(call)
    results = [reduction.now(recording.ref(tensor)) for tensor in outputs]
    calls = joined(_needed(reduction.calls, results, reduction.memory), recording, reduction.constants)
    return Tape(taken, calls, results, reduction.constants, TapeOrigins(reduction.outside, reduction.derived,
                                                                        reduction.constants))


@final
class _Reduction:
    """The calls of a recording without those whose results are constant and those made before with equal arguments.

    Attributes:
        constants: tensors that are the same objects at each step.
        outside: those among them that existed before the step.
        derived: calls that were made once and for all, whose results are among the constants and no views.
    """

    def __init__(self, recording: Recording, inputs: Sequence[Ref], kept: Sequence[Tensor],
                 outputs: Sequence[Tensor]) -> None:
        self._recording, self._tensors = recording, recording.tensors
        self._leaving = {storage_of(tensor) for tensor in outputs}
        self._memories: dict[Ref, int] = {}
        self._kept = {storage_of(tensor) for tensor in kept} - {0}
        self._written = self._kept | {self.memory(ref) for call in recording.calls for ref in call.writes}
        self.constants = {Ref(place): tensor for place, tensor in enumerate(recording.tensors)
                          if place not in recording.produced and Ref(place) not in inputs}
        self.outside, self.derived = list(self.constants.values()), list[Call]()
        self.calls: list[Call] = []
        self._alias: dict[Ref, Ref] = {}
        self._asked: dict[Hashable, tuple[Ref, ...]] = {}
        self._version: dict[int, int] = {}

    def now(self, ref: Ref) -> Ref:
        """Return the tensor that replaces ``ref``, or ``ref`` itself."""
        return self._alias.get(ref, ref)

    def add(self, call: Call) -> None:
        """Add the next call, unless it is redundant."""
        call = call.of(self._alias)
        pure = bool(call.outs) and not call.writes
        if pure and set(call.outs) <= set(call.takes):
            return  # it returned its argument, such as `contiguous` of a contiguous tensor
        call = in_c(call, self._recording)
        if pure and not call.in_c and self._again(call):
            return  # in C making it again takes less time than a view of the first result would
        if pure and self._known(call):
            self.constants |= {out: self._tensors[out] for out in call.outs}
            if {self.memory(out) for out in call.outs}.isdisjoint(map(self.memory, call.takes)):
                self.derived.append(call)
            return
        if pure and call.in_c:
            for out in call.outs:
                self._stay(out)
        self.calls.append(call)
        self._version |= {self.memory(ref): len(self.calls) for ref in call.writes}

    def _stay(self, out: Ref) -> None:
        """A result of native code is written at each step where the recorded one lies, unless it leaves the step, so
        that views of it are the same at each step."""
        memory = self.memory(out)
        if memory not in self._leaving:
            self.constants[out] = self._tensors[out]
            self._kept.add(memory)
            self._written.add(memory)

    def _known(self, call: Call) -> bool:
        """Return whether the call's result is the same at each step: it has only constant arguments that nothing writes
        to, or is a view of a buffer that stays."""
        if not all(ref in self.constants for ref in call.takes):
            return False
        given = {self.memory(out) for out in call.outs}
        return given <= self._kept or self._written.isdisjoint({*given, *map(self.memory, call.takes)})

    def _again(self, call: Call) -> bool:
        """Return whether an equal call was made before on the same contents; its results then replace this one's."""
        if any(self.memory(out) in self._written for out in call.outs):
            return False
        versions = tuple(self._version.get(self.memory(ref)) for ref in call.takes)
        try:
            key = (call.function, _key(call.args), _key(tuple(call.options.items())), versions)
            before = self._asked.setdefault(key, call.outs)
        except TypeError:  # an argument that cannot be compared
            return False
        if before is call.outs:
            return False
        self._alias |= zip(call.outs, before, strict=True)
        return True

    def memory(self, ref: Ref) -> int:
        if ref not in self._memories:
            self._memories[ref] = storage_of(self._tensors[ref])
        return self._memories[ref]


def _key(value: Any) -> Hashable:
    """Return a key that is equal for equal arguments of equal types: 1, 1.0 and True have different keys."""
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    if isinstance(value, slice):
        return slice, _key((value.start, value.stop, value.step))
    return type(value), value


def _needed(calls: Sequence[Call], results: Sequence[Ref], memory: Callable[[Ref], int]) -> list[Call]:
    """Return the calls that write or check, or whose results are read. What native code returns may be read through a
    view that is no call, so its memory counts."""
    read, touched, needed = set(results), {memory(ref) for ref in results}, list[Call]()
    for call in reversed(calls):
        seen = bool(call.in_c) and not touched.isdisjoint(map(memory, call.outs))
        if not call.outs or call.writes or seen or not read.isdisjoint(call.outs):
            needed.append(call)
            read |= set(call.takes)
            touched |= set(map(memory, call.takes))
    return needed[::-1]


@final
class Tape:
    """Calls over numbered registers, which hold the tensors and all other arguments. The register of a tensor that is
    no longer needed is reused for another, so that its memory is freed.

    A call of the tape raises `ChangedError` if a tensor's truth value differs from the recorded one.

    Attributes:
        sources: what the tape's constants come from.
    """

    def __init__(self, inputs: Sequence[Ref], calls: Sequence[Call], results: Sequence[Ref],
                 constants: dict[Ref, Tensor], sources: TapeOrigins) -> None:
        self.sources = sources
        self._registers: list[Any] = [None] * (1 + len(inputs))  # the first is for unused results
        self._at = {ref: 1 + index for index, ref in enumerate(inputs)}
        self._free: list[int] = []
        self._constants, self._fixed = constants, dict[int, int]()
        self._inputs = slice(1, 1 + len(inputs))
        leaving = _leaving(calls, results)
        self._lines: list[tuple[Callable[..., Any], Callable[[list[Any]], Sequence[Any]], int | slice]] = []
        for call, done in zip(calls, leaving, strict=True):
            self._add(call)
            for ref in done:
                self._free += [self._at.pop(ref)] if ref in self._at else []
        self._results = _picker([self._of(ref) for ref in results])

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        registers = self._registers.copy()
        registers[self._inputs] = inputs
        for function, pick, out in self._lines:
            registers[out] = function(*pick(registers))
        return self._results(registers)

    def _add(self, call: Call) -> None:
        """Append a call as a line: its function, its argument registers and its result registers."""
        fixed = {key: each for key, each in call.options.items() if not _holds(each)}
        others = {key: each for key, each in call.options.items() if key not in fixed}
        function = partial(call.function, **fixed) if fixed else call.function
        if call.expected is not None:
            function = partial(_check, function, call.expected)
        if others:
            function = partial(_named, function, tuple(others))
        pick = _picker([self._of(each) for each in (*call.args, *others.values())])
        self._lines.append((function, pick, self._place(call)))

    def _place(self, call: Call) -> int | slice:
        """Return the registers for a call's results."""
        if not call.outs or set(call.outs) <= set(call.takes):
            return 0
        if call.single:
            self._at[call.outs[0]] = self._free.pop() if self._free else self._new(None)
            return self._at[call.outs[0]]
        first = len(self._registers)
        self._at |= {out: self._new(None) for out in call.outs}
        return slice(first, len(self._registers))

    def _of(self, value: Any) -> int:
        """Return the register of an argument."""
        if isinstance(value, Ref) and value in self._at:
            return self._at[value]
        if isinstance(value, tuple | list) and _holds(value):
            self._lines.append((partial(_gathered, type(value)), _picker([self._of(each) for each in value]),
                                place := self._new(None)))
            return place
        held = self._constants[value] if isinstance(value, Ref) else value
        if id(held) not in self._fixed:
            self._fixed[id(held)] = self._new(held)
        return self._fixed[id(held)]

    def _new(self, value: Any) -> int:
        self._registers.append(value)
        return len(self._registers) - 1


def _leaving(calls: Sequence[Call], results: Sequence[Ref]) -> list[list[Ref]]:
    """Return for each call the tensors that are not needed after it."""
    last = {ref: index for index, call in enumerate(calls) for ref in (*call.takes, *call.outs)}
    leaving: list[list[Ref]] = [[] for _ in calls]
    for ref, index in last.items():
        if ref not in results:
            leaving[index].append(ref)
    return leaving


def _picker(places: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """Return a function that picks these registers, in this order, from the list of all."""
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places) if places else itemgetter(slice(0, 0))


def _holds(value: Any) -> bool:
    """Return whether there is a tensor in the argument."""
    return next(refs_in(value), None) is not None


def _gathered(kind: type, *values: Any) -> Any:
    return kind(values)


def _named(function: Callable[..., Any], names: Sequence[str], *values: Any) -> Any:
    """Call the function with the last values passed as keyword arguments."""
    count = len(values) - len(names)
    return function(*values[:count], **dict(zip(names, values[count:], strict=True)))


def _check(function: Callable[..., Any], expected: bool, *values: Any) -> None:
    if function(*values) is not expected:
        raise ChangedError
