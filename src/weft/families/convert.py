"""`convert`: a model from one format of folder to another, verified before it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from safetensors import SafetensorError
from torch import Tensor

from weft.checkpoints.atomic import replacing
from weft.checkpoints.layout import CONFIG_FILE
from weft.checkpoints.load import Loaded, load_checkpoint
from weft.checkpoints.room import not_written
from weft.checkpoints.save import save_checkpoint
from weft.checkpoints.tensors import own_tensors
from weft.core.errors import CheckpointError, InputError, nearest
from weft.core.model import LanguageModel
from weft.families.folder import is_foreign
from weft.families.loading import load_folder
from weft.families.text import write_tokenizer
from weft.families.verify import foreign_logits, largest_difference, logits_of, probe, require_close
from weft.families.writing import fit, write_model

SHARD_SIZE = "5GB"
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@final
@dataclass(frozen=True, eq=False)
class Source:
    """What is converted.

    Attributes:
        loaded: the model and its tokenizer, as they were read.
        model: the one to write: that one, or one with pooled heads.
        family: the only family to write; None: the one it came from, or any that fits.
        shard_bytes: of one file at most.
    """

    loaded: Loaded
    model: LanguageModel
    family: str | None
    shard_bytes: int

    @property
    def kept(self) -> dict[str, Any]:
        """Ids of special tokens and the like, from the foreign folder it came from, else from its tokenizer."""
        kept: dict[str, Any] = dict(self.loaded.facts.get("kept") or {})
        tokenizer = self.loaded.tokenizer
        if not kept and tokenizer is not None:
            kept = {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
        return kept


@final
@dataclass(frozen=True)
class Written:
    """What a target has written: the family, if it has one, and what the user should know."""

    family: str | None = None
    notes: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class Target:
    """A format to convert to.

    Attributes:
        check: raises for a source that it cannot hold, before anything is written.
        write: fills an empty folder.
        read: gives the model that is in one, for the verification.
        replaces: whether a folder is one of this format, which may be replaced.
        foreign: whether `transformers` opens it.
    """

    check: Callable[[Source], None]
    write: Callable[[Source, Path], Written]
    read: Callable[[Path], LanguageModel]
    replaces: Callable[[Path], bool]
    foreign: bool = False


@final
@dataclass(frozen=True)
class Converted:
    """What a conversion has done.

    Attributes:
        path: the folder.
        target: its format.
        family: the family of a foreign folder, or None.
        dtype: of the weights.
        difference: largest difference of logits between the model and the folder, read again by Weft.
        foreign: the same for `transformers`; None where it is not installed or does not know the format.
        pooled: largest difference that pooling heads has made; None where none were pooled.
        notes: what the user should know.
    """

    path: Path
    target: str
    family: str | None
    dtype: str
    difference: float
    foreign: float | None
    pooled: float | None
    notes: tuple[str, ...]


def _fitted(source: Source) -> Any:
    return fit(source.model.config, source.kept, family=source.family, first=source.loaded.facts.get("family"))


def _write_hf(source: Source, draft: Path) -> Written:
    fitted = _fitted(source)
    write_model(fitted, source.model, source.kept, draft, shard_bytes=source.shard_bytes)
    origin = source.loaded.path if is_foreign(source.loaded.path) else None
    notes = write_tokenizer(source.loaded.tokenizer, origin, draft, source.model.config.context)
    return Written(fitted.family.name, tuple(notes))


def _write_weft(source: Source, draft: Path) -> Written:
    loaded = source.loaded
    save_checkpoint(draft, source.model, loaded.tokenizer, run=loaded.run, facts=loaded.facts)
    return Written()


def _is_weft(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() and not is_foreign(folder)


TARGETS: Mapping[str, Target] = MappingProxyType({
    "hf": Target(_fitted, _write_hf, lambda folder: load_folder(folder).model, is_foreign, foreign=True),
    "weft": Target(lambda source: None, _write_weft, lambda folder: load_checkpoint(folder).model, _is_weft)})
"""By the name that ``--to`` takes."""


def convert(loaded: Loaded, out: Path, *, to: str, pooled: LanguageModel | None = None, family: str | None = None,
            max_shard_size: str = SHARD_SIZE) -> Converted:
    """Write a model in another format. The folder is verified by reading it again, and stands only then.

    Args:
        loaded: what is converted.
        out: the folder; one of the same format is replaced.
        to: the format, a key of `TARGETS`.
        pooled: write this model, made from ``loaded``'s by `pool_heads`, in its place.
        family: write this family's format; None: the one the model came from, or any that fits.
        max_shard_size: of one file of weights, such as ``5GB``.

    Raises:
        InputError: an unknown format or size, or a folder that is the source itself.
        CheckpointError: something that is no such folder stands at ``out``.
        UnsupportedError: the format cannot hold the model.
        FailedError: what was written does not give the model's numbers, or there is no room.
    """
    if to not in TARGETS:
        raise InputError(f"no format is called {to!r}.", where="to", remedy=nearest(to, TARGETS))
    target = TARGETS[to]
    source = Source(loaded, loaded.model if pooled is None else pooled, family, parse_size(max_shard_size))
    _require_free(out, loaded.path, target)
    target.check(source)
    tokens = probe(source.model)
    wanted = logits_of(source.model, tokens)
    try:
        with replacing(out) as draft:
            written = target.write(source, draft)
            difference, foreign = _verify(target, draft, tokens, wanted)
    except (OSError, SafetensorError) as error:
        raise not_written(error, out, _bytes(source.model)) from error
    changed = None if pooled is None else largest_difference(logits_of(loaded.model, tokens), wanted)
    dtype = str(next(source.model.parameters()).dtype).removeprefix("torch.")
    return Converted(out, to, written.family, dtype, difference, foreign, changed, written.notes)


def _verify(target: Target, draft: Path, tokens: Tensor, wanted: Tensor) -> tuple[float, float | None]:
    """The largest differences of logits, by Weft and, where it is installed and knows the format, by `transformers`."""
    again = target.read(draft)
    dtypes = (next(again.parameters()).dtype,)
    difference = largest_difference(logits_of(again, tokens), wanted)
    require_close(difference, wanted, dtypes, "the folder, read again,")
    theirs = foreign_logits(draft, tokens) if target.foreign else None
    if theirs is None:
        return difference, None
    foreign = largest_difference(theirs, wanted)
    require_close(foreign, wanted, dtypes, "transformers")
    return difference, foreign


def parse_size(text: str) -> int:
    """Bytes of a size such as ``5GB``, ``200MB`` or ``1GiB``.

    Raises:
        InputError: it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?B|)", text.strip().upper())
    size = int(float(found[1]) * UNITS[found[2]]) if found and found[2] in UNITS else 0
    if size < 1:
        raise InputError(f"{text!r} is no size.", where="max_shard_size", remedy="Write 5GB, 200MB or 1GiB.")
    return size


def _require_free(out: Path, source: Path, target: Target) -> None:
    if out.resolve() == source.resolve():
        raise InputError("the folder is the one that is converted.", where=str(out), remedy="Choose another folder.")
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not target.replaces(out)):
        raise CheckpointError("something else stands here, and it will not be replaced.", where=str(out),
                              remedy="Choose another folder.")


def _bytes(model: LanguageModel) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in own_tensors(model).values())
