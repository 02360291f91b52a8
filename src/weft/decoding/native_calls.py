"""Recorded calls that are written in C, joined to sequences: one call from Python in place of some hundred.

A result of native code that does not leave the step is written at every step where the recorded one lies, so its views
stay the same, and most addresses in a sequence are constant. Calls between them that need nothing from an open sequence
run before it, so that a step has few sequences.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weft.decoding.recording import Call, Recording, Ref, mapped, storage_of
from weft.ops.few_rows import unavailable
from weft.ops.native.sequence import WRITERS, Calls, calls_of, place_of
from weft.ops.native_token import PART  # noqa: F401 - this module declares how PyTorch's own operators stand in one


def in_c(call: Call, recording: Recording) -> Call:
    """The call with what it is in C; the call itself if it has none."""
    writer = WRITERS.get(call.function)
    if writer is None or not call.outs or call.expected is not None or unavailable() is not None:
        return call
    def tensor(ref: Ref) -> Tensor:
        return recording.tensors[ref]

    if not all(map(_plain, map(tensor, (*call.takes, *call.outs)))):
        return call
    options = {key: mapped(each, tensor) for key, each in call.options.items()}
    outs = tuple(map(tensor, call.outs))
    return replace(call, in_c=calls_of(writer, outs[0] if call.single else outs, *mapped(call.args, tensor), **options))


def _plain(tensor: Tensor) -> bool:
    """Whether the tensor's numbers lie in main memory as its strides say."""
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_neg() and not (
        tensor.is_conj())


def joined(calls: Sequence[Call], recording: Recording, constants: Mapping[Ref, Tensor]) -> list[Call]:
    """The calls with each run of native ones in place of its calls."""
    done: list[Call] = []
    run: list[Call] = []
    for call in calls:
        if call.in_c:
            run.append(call)
            continue
        if run and not _apart(call, run, recording):
            done.append(_sequence(run, recording, constants))
            run = []
        done.append(call)
    return [*done, _sequence(run, recording, constants)] if run else done


def _apart(call: Call, run: Sequence[Call], recording: Recording) -> bool:
    """Whether a call that comes after a run may be made before it: it neither reads what the run writes, nor writes,
    nor checks."""
    if not call.outs or call.writes or call.expected is not None:
        return False
    touched = {storage_of(recording.tensors[ref]) for each in run for ref in (*each.outs, *each.writes)}
    return touched.isdisjoint(storage_of(recording.tensors[ref]) for ref in call.takes)


def _sequence(run: Sequence[Call], recording: Recording, constants: Mapping[Ref, Tensor]) -> Call:
    """A run as one call, which takes the tensors that are others at each step, and returns those that leave it."""
    inputs: dict[Ref, list[ctypes.c_void_p]] = {}
    results: dict[Ref, list[ctypes.c_void_p]] = {}
    for outs, own in [(call.outs, own) for call in run for own in call.in_c]:
        for field, tensor in own.takes.items():
            ref = Ref(recording.places.get(id(tensor), -1))
            place = place_of(own.call, field, tensor.data_ptr())
            if ref in results:
                results[ref].append(place)
            elif ref >= 0 and ref not in constants:
                inputs.setdefault(ref, []).append(place)
        for out, field in zip(outs if own.results else (), own.results, strict=True):
            place = place_of(own.call, field, recording.tensors[out].data_ptr())
            if out not in constants:
                results.setdefault(out, []).append(place)
    made = [(recording.tensors[ref], places) for ref, places in results.items()]
    writes = tuple(ref for call in run for ref in call.writes)
    function = Calls([own for call in run for own in call.in_c], inputs.values(), made)
    return Call(function, tuple(inputs), {}, tuple(inputs), writes, tuple(results), False, None)
