"""Loading models from checkpoints, converting them to other formats, and listing the published ones.

``convert`` for ARPA files of n-gram models: which conversions concern them, and with which options.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import nn

from weft.checkpoints import Loaded, find_checkpoint, save_checkpoint
from weft.checkpoints.hub import resolve
from weft.checkpoints.layout import RUN_CHECKPOINTS
from weft.core.config import parse_part
from weft.core.errors import InputError, UnsupportedError, nearest
from weft.core.model import LanguageModel, language_model
from weft.core.model import Model as AnyModel
from weft.families.family import families as known_families
from weft.index.records import Published
from weft.interop.adapters.opening import base_of, merged_within_bounds
from weft.interop.arpa.convert import from_arpa, is_arpa, to_arpa
from weft.interop.convert import SHARD_SIZE, Converted
from weft.interop.convert import convert as convert_model
from weft.interop.formats import TARGETS
from weft.interop.formats import published as published_models
from weft.interop.pooling import pool_heads
from weft.interop.rwkv import is_original, load_original
from weft.tokenizers import Tokenizer, load_tokenizer
from weft.tokenizers.config import ByteTokenizerConfig, TokenizerConfig, known_tokenizers
from weft.tokenizers.files import folder_of_own
from weft.training.config import DTYPES
from weft.training.overrides import apply_overrides
from weft.training.starting import opened

Model = str | Path | Loaded | nn.Module
"""A checkpoint: its folder, a model on the Hub, one already loaded, or a model that a configuration built."""


def require_device(name: str) -> torch.device:
    """Return the device of that name.

    Raises:
        UnsupportedError: this machine or this build of PyTorch has no such device.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # which has no value on meta
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UnsupportedError(f"the device {name!r} cannot be used here.", where="device",
                               remedy="Use cpu, or see weft doctor for what this machine has.") from None
    return device


def require_dtype(name: str) -> torch.dtype:
    """Return the dtype of that name.

    Raises:
        InputError: it is none of the dtypes in which Weft computes.
    """
    if name not in DTYPES:
        raise InputError(f"unknown dtype {name!r}.", where="dtype", remedy=nearest(name, DTYPES))
    return DTYPES[name]


def load(path: Model, *, device: str = "cpu", dtype: str | None = None, revision: str | None = None,
         offline: bool | None = None, allow_pickles: bool = False, purpose: str | None = None,
         base: str | None = None, strict: bool = False) -> Loaded:
    """Load a checkpoint's model and tokenizer.

    Args:
        path: a model in memory, which is returned as loaded, without a tokenizer if it is none; or the folder of a
            checkpoint, of a run (its last checkpoint is loaded), of an adapter alone (Weft's or one
            that `peft` wrote; it is put on the model under it), or one that `transformers` wrote; an original file of
            RWKV (``.pth``); or a model on the Hugging Face Hub, as ``org/name`` or ``org/name@revision``.
        device: the device to load the model to.
        dtype: cast the weights to float32, float64 or bfloat16; None keeps their dtypes.
        revision: for a model on the Hub, a branch, a tag or a commit.
        offline: use only files already downloaded; None: as ``HF_HUB_OFFLINE`` is set. See
            `weft.checkpoints.hub.resolve`.
        allow_pickles: download pickled weights if the model has no others.
        purpose: what a language model is needed for, for the error message; any other model is then refused before its
            weights are read. None: any model is loaded.
        base: the model under an adapter, a folder or a name on the Hub; None: the one that the adapter's folder names.
        strict: of a folder that `transformers` wrote, refuse keys of config.json that Weft does not know and does not
            use, of which there is otherwise a note, and weights that hold NaN, for which all are read once more.
    """
    if not isinstance(path, Loaded | nn.Module):
        path = resolve(path, revision=revision, offline=offline, allow_pickles=allow_pickles)
    return _load(path, device, None if dtype is None else require_dtype(dtype), purpose, base, strict)


def in_memory(model: nn.Module) -> Loaded:
    """Return a model that a configuration built as one that was loaded, without a tokenizer and a run.

    Raises:
        InputError: a module that is no model of Weft.
    """
    if not isinstance(model, AnyModel):
        raise InputError(f"a {type(model).__name__} is no model of Weft.", where="model",
                         remedy="Give what weft.load returned, or a model that a configuration built.")
    return Loaded(model, None, model.config, None, {}, Path(model.config.kind))


def load_language_model(path: Model, purpose: str) -> tuple[Loaded, LanguageModel]:
    """Load a checkpoint for a purpose that needs probabilities of the next token; returns it and its language model.

    Raises:
        UnsupportedError: the model is not a language model.
    """
    loaded = load(path, purpose=purpose)
    return loaded, language_model(loaded.model, purpose, where=str(loaded.path))


def _load(path: Model, device: str, dtype: torch.dtype | None, purpose: str | None = None,
          base: str | None = None, strict: bool = False) -> Loaded:
    place = require_device(device)
    if isinstance(path, nn.Module):
        path = in_memory(path)
    if not isinstance(path, Loaded) and is_original(Path(path)):
        return load_original(Path(path), device=place, dtype=dtype)
    if not isinstance(path, Loaded):
        return opened(find_checkpoint(resolve(path)), device=place, dtype=dtype, purpose=purpose, base=base,
                      strict=strict)
    if dtype is not None:
        path.model.to(dtype)
    return path


def save(model: Loaded | nn.Module, path: str | Path, *, tokenizer: Tokenizer | None = None) -> Path:
    """Write a model in memory as a checkpoint, which `load`, `train` and every command read; see
    `weft.checkpoints.save_checkpoint`.

    Args:
        model: loaded or built.
        path: the folder to create.
        tokenizer: of the model; None: that of a loaded model, and none for a built one.

    Raises:
        InputError: a module that is no model of Weft.
        OccupiedError: the folder exists.
    """
    if not isinstance(model, Loaded):
        model = in_memory(model)
    return save_checkpoint(path, model.model, tokenizer or model.tokenizer, run=model.run, facts=model.facts)


def convert(source: Model, out: str | Path, *, to: str | None = None, dtype: str | None = None,
            max_shard_size: str = SHARD_SIZE, n_kv_heads: int | None = None, family: str | None = None,
            with_code: bool = False, tokenizer: str | None = None, base: str | None = None,
            replace: bool = False, strict: bool = False) -> Converted:
    """Write a model in another format, and verify the result by reading it again; see `weft.interop.convert`. Linear
    maps changed by the model's ``rewrites`` are merged into single matrices, except in the formats ``adapter`` and
    ``peft``, which hold adapters alone.

    Args:
        source: the model to convert; an ARPA file becomes a checkpoint, see `weft.interop.arpa.convert`.
        out: the folder or file; an n-gram model whose ``out`` is named ``.arpa`` or ``.arpa.gz`` becomes an ARPA file.
        to: the format; None: as the name of an ARPA file shows.
        dtype: cast the weights to float32, float64, bfloat16 or float16; None keeps their dtypes.
        max_shard_size: maximum size of a file of weights.
        n_kv_heads: reduce the key and value heads of every attention layer to this number by averaging.
        family: the family of models to write it as; None: the one that fits.
        with_code: if no native class of `transformers` can express the model, write a modelling file beside it.
        tokenizer: the tokenizer whose pieces or ids the words of an ARPA file are; None: they are words of text.
        base: the model under an adapter, a folder or a name on the Hub; None: the one that the adapter's folder names,
            or that its run started from.
        replace: replace a folder whose manifest proves that Weft wrote all of its files.
        strict: see `load`.

    Raises:
        FailedError: merging changes logits by more than rounding explains, or the result is not the model.
    """
    others = {"dtype": dtype, "n_kv_heads": n_kv_heads, "family": family, "with_code": with_code,
              "max_shard_size": max_shard_size if max_shard_size != SHARD_SIZE else None}
    if concerns_arpa(source, out, to, tokenizer, others):
        if is_arpa(out):
            return to_arpa(_load(source, "cpu", None), Path(out))
        assert isinstance(source, str | Path), "a file is named by its path"
        return from_arpa(Path(source), Path(out), given_tokenizer(tokenizer), replace=replace)
    assert to is not None, "`concerns_arpa` refuses None"
    kind = torch.float16 if dtype == "float16" else None if dtype is None else require_dtype(dtype)
    loaded = _load(source, "cpu", None, base=base, strict=strict)
    if to in TARGETS and TARGETS[to].adapts:
        return convert_model(loaded, Path(out), to=to, base=base_of(loaded, base), family=family, dtype=kind,
                             max_shard_size=max_shard_size, with_code=with_code, replace=replace)
    if isinstance(source, Loaded | nn.Module) and kind is not None:
        # Casting is in place, and the caller's model must keep its weights.
        loaded = dataclasses.replace(loaded, model=copy.deepcopy(loaded.model))
    plain, difference, bound = merged_within_bounds(loaded.model)
    loaded = dataclasses.replace(loaded, model=plain, config=plain.config)
    pooled = None if n_kv_heads is None else pool_heads(language_model(loaded.model, "pooling heads"), n_kv_heads)
    found = convert_model(loaded, Path(out), to=to, pooled=pooled, family=family, max_shard_size=max_shard_size,
                          with_code=with_code, dtype=kind, replace=replace)
    return dataclasses.replace(found, merged=difference, merged_bound=bound)


def families(only: str | None = None) -> Iterable[Published]:
    """List the published models of every family, or of one, with their numbers of parameters.

    Raises:
        InputError: there is no family of that name; the message names the nearest.
    """
    if only is not None and only not in known_families():
        raise InputError(f"unknown family {only!r}.", where="families", remedy=nearest(only, known_families()))
    return published_models(only)


TARGET = "arpa"


def concerns_arpa(source: object, out: str | Path, to: str | None, tokenizer: str | None,
                  others: Mapping[str, object]) -> bool:
    """Return whether a conversion reads or writes an ARPA file, as the file names' suffixes show.

    Args:
        source: the model to convert.
        out: the file or folder to write.
        to: the requested format, or None.
        tokenizer: the tokenizer whose pieces are the words of the ARPA file, or None.
        others: options of other formats alone; None or False where they are not set.

    Raises:
        InputError: an option or a format that does not apply to the files, or no format.
    """
    reads, writes = isinstance(source, str | Path) and is_arpa(source), is_arpa(out)
    if not reads and tokenizer is not None:
        raise InputError("a tokenizer for a model that brings its own.", where="tokenizer",
                         remedy="Leave it out: it is for reading ARPA files (.arpa, .arpa.gz), whose words are its "
                                "pieces or ids.")
    if not reads and not writes:
        _require_format(to)
        return False
    if reads and writes:
        raise InputError("both are ARPA files.", where=str(out), remedy="Name a folder to make a checkpoint in.")
    target = TARGET if writes else "weft"
    if to not in (None, target):
        raise InputError(f"the format {to!r}, while the files' names say {target!r}.", where="to",
                         remedy="Leave it out, or convert in two steps.")
    for name, value in others.items():
        if value:
            raise InputError(f"{value!r} says nothing of an ARPA file.", where=name, remedy="Leave it out.")
    return True


def given_tokenizer(tokenizer: str | None) -> Tokenizer | None:
    """Load the tokenizer that a user names: by a checkpoint or run, a tokenizer's file or folder, or ``bytes``.

    Raises:
        InputError: a tokenizer that would have to be trained.
        TokenizerError: the file cannot be read.
        CheckpointError: the run has no checkpoint.
    """
    if tokenizer is None:
        return None
    path = Path(tokenizer)
    if (path / RUN_CHECKPOINTS).is_dir():
        path = find_checkpoint(path)
    own = folder_of_own(path)
    if own is not None:
        return load_tokenizer(own, kinds=known_tokenizers())
    plain = {"kind": "file", "path": tokenizer} if path.exists() else apply_overrides(
        {}, [f"tokenizer={tokenizer}"])["tokenizer"]
    config = parse_part(("tokenizer",), plain)
    assert isinstance(config, TokenizerConfig), "the group tokenizer holds tokenizer configurations"
    loaded = config.fit(()) if isinstance(config, ByteTokenizerConfig) else config.from_file()
    if loaded is None:
        raise InputError(f"a tokenizer of kind {config.kind!r} is learned from text, and an ARPA file has none.",
                         where="tokenizer", remedy="Name a checkpoint or a file that holds the tokenizer.")
    return loaded


def _require_format(to: str | None) -> None:
    if to is None:
        raise InputError("no format is given.", where="to",
                         remedy="Give one with --to, or name the file .arpa or .arpa.gz for an n-gram model.")
    if to == TARGET:
        raise InputError("an ARPA model is a file.", where="to", remedy="Name it .arpa or .arpa.gz.")
