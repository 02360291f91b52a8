"""`convert`: a model from one format to another, verified before the result is put in place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from weft.checkpoints.layout import TRAINING_FILE
from weft.checkpoints.load import Loaded
from weft.checkpoints.tensors import own_tensors
from weft.core.errors import InputError, nearest
from weft.core.model import Model, language_model
from weft.disk.atomic import made, new_file, not_written, replacing
from weft.disk.ownership import by_manifest, require_free
from weft.interop.formats import TARGETS, ConversionSource, Target
from weft.interop.verify import a_tensor, largest_difference, logits_of, probe, require_close

SHARD_SIZE = "5GB"
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True)
class Converted:
    """The result of a conversion.

    Attributes:
        path: the folder or file.
        family: the family of a foreign folder or file, or None.
        difference: largest difference of logits between the model, cast, and the result, read back by Weft.
        reader: the other program that opens the format (`transformers`, llama.cpp), or None.
        foreign: the same for that program; None where it is not installed, does not support the format or cannot run
            the model, which a note then reports.
        pooled: largest difference of logits due to pooling heads; None where none were pooled.
        source_dtype: dtype of the weights before they were cast; None where they were not.
        cast: largest difference of logits due to casting; None likewise.
        largest: the largest absolute value of those logits; None likewise.
        merged: largest difference of logits due to merging rewrites into single matrices; None where there are none.
        merged_bound: the difference above which that is refused; None likewise.
    """

    path: Path
    target: str
    family: str | None
    dtype: str
    difference: float
    reader: str | None
    foreign: float | None
    pooled: float | None
    notes: tuple[str, ...]
    source_dtype: str | None = None
    cast: float | None = None
    largest: float | None = None
    merged: float | None = None
    merged_bound: float | None = None


def convert(loaded: Loaded, out: Path, *, to: str, pooled: Model | None = None, family: str | None = None,
            max_shard_size: str = SHARD_SIZE, with_code: bool = False, dtype: torch.dtype | None = None,
            base: str = "", replace: bool = False) -> Converted:
    """Write a model in another format. The result is verified by reading it back, and only then put in place.

    Args:
        loaded: the model to convert; with a ``dtype`` its weights are cast in place.
        out: the folder or file to write.
        to: the format, a key of `TARGETS`.
        pooled: write this model, made from ``loaded``'s by `pool_heads`, in its place.
        family: write this family's format; None: the one the model came from, or any that fits.
        max_shard_size: most bytes of one file of weights, such as ``5GB``; formats of one file accept only the default.
        with_code: where no native class of `transformers` can express the model, write a modelling file beside it.
        dtype: cast the weights; None keeps theirs.
        base: the model under the adapters, for formats that hold these alone.
        replace: replace a folder whose manifest proves that Weft wrote everything in it.

    Raises:
        InputError: an unknown format or size, a folder that is the source itself or lies in it, or
            ``with_code`` where it has no meaning.
        OccupiedError: there is something at ``out`` that is not Weft's, or that is not to be replaced.
        UnsupportedError: the format cannot hold the model.
        FailedError: the result does not give the model's logits, or there is no room.
    """
    target = _target(to, family, max_shard_size, with_code)
    source = ConversionSource(loaded, loaded.model if pooled is None else pooled, family, parse_size(max_shard_size),
                              with_code,
                              base)
    _require_apart(out, loaded.path, target)
    require_free(out, single=target.single, proof=_proof, replace=replace)
    if target.causal:
        language_model(source.model, f"the format {to!r}", where=str(loaded.path))
    tokens, kind = probe(source.model), _dtype(source.model)
    before = logits_of(source.model, tokens)
    moved = None if pooled is None else largest_difference(logits_of(loaded.model, tokens), before)
    source.model.to(dtype)
    target.check(source)
    cast = _dtype(source.model) != kind
    expected = logits_of(source.model, tokens) if cast else before
    try:
        writing = new_file(out) if target.single else replacing(out, proof=_proof if replace else None)
        with made(out.parent), writing as draft:
            written, notes = target.write(source, draft)
            difference, foreign, more = _verify(target, source, draft, tokens, expected)
    except (OSError, SafetensorError) as error:
        raise not_written(error, out, sum(tensor.nbytes for tensor in own_tensors(source.model).values())) from error
    reader = target.foreign.name if target.foreign else None
    return Converted(out, to, written, _dtype(source.model), difference, reader, foreign, moved, (*notes, *more),
                     kind if cast else None, largest_difference(before, expected) if cast else None,
                     float(before.abs().max()) if cast else None)


def _dtype(model: Model) -> str:
    return str(a_tensor(model).dtype).removeprefix("torch.")


def _target(to: str, family: str | None, max_shard_size: str, with_code: bool) -> Target:
    """The format of that name, checked against the options."""
    if to not in TARGETS:
        raise InputError(f"no format is called {to!r}.", where="to", remedy=nearest(to, TARGETS))
    if TARGETS[to].single and max_shard_size != SHARD_SIZE:
        raise InputError(f"the format {to!r} is always a single file.", where="max_shard_size", remedy="Leave it out.")
    if with_code and (to != "hf" or family is not None):
        what = f"the format {to!r}" if to != "hf" else f"the family {family!r}"
        raise InputError(f"a modelling file for {what}.", where="with_code",
                         remedy="It is for the format hf without a family: leave one of them out.")
    return TARGETS[to]


def _verify(target: Target, source: ConversionSource, draft: Path, tokens: Tensor,
            expected: Tensor) -> tuple[float, float | None, tuple[str, ...]]:
    """The largest differences of logits, as read by Weft and, where possible, by the other program that opens the
    format; and notes for the user."""
    again = target.read(source, draft)
    dtypes = (a_tensor(again).dtype,)
    difference = largest_difference(logits_of(again, tokens), expected)
    require_close(difference, expected, dtypes, f"the {target.kind}, read again,")
    if target.foreign is None:
        return difference, None, ()
    theirs, notes = target.foreign.logits(source, draft, tokens)
    if theirs is None:
        return difference, None, notes
    foreign = largest_difference(theirs, expected)
    require_close(foreign, expected, (*dtypes, *target.foreign.rounds(source)), target.foreign.name)
    return difference, foreign, notes


def parse_size(text: str) -> int:
    """Bytes of a size such as ``5GB``, ``200MB`` or ``1GiB``. Raises `InputError`: the text is not a size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?B|)", text.strip().upper())
    size = int(float(found[1]) * UNITS[found[2]]) if found and found[2] in UNITS else 0
    if size < 1:
        raise InputError(f"{text!r} is not a size.", where="max_shard_size", remedy="Write 5GB, 200MB or 1GiB.")
    return size


def _require_apart(out: Path, source: Path, target: Target) -> None:
    """Raise where the result would overwrite the source or, unless it is a single file, lie in it. A folder around the
    source holds files that no manifest lists, so it is never replaced."""
    here, there = out.resolve(), source.resolve()
    what = None
    if here == there or (here.exists() and there.exists() and here.samefile(there)):
        what = "is the source of the conversion"
    elif there in here.parents and not target.single:
        what = "lies in the source of the conversion"
    if what:
        raise InputError(f"the {target.kind} {what}.", where=str(out), remedy=f"Choose another {target.kind}.")


def _proof(folder: Path) -> list[str]:
    """Reasons why a folder must not be replaced: a run can resume from it, or not everything in it is Weft's."""
    resumed = [f"{TRAINING_FILE} is needed to resume a run"] if (folder / TRAINING_FILE).exists() else []
    return [*resumed, *by_manifest(folder)]
