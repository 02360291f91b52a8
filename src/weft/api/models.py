"""Models in memory: from checkpoints, to other formats, and the published ones."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from pathlib import Path

import torch

from weft.api.arpa import concerns_arpa, given_tokenizer
from weft.checkpoints import Loaded, find_checkpoint
from weft.checkpoints.hub import resolve
from weft.core.errors import InputError, UnsupportedError, nearest
from weft.core.model import LanguageModel, language_model
from weft.families.family import families as known_families
from weft.interop.arpa.convert import from_arpa, is_arpa, to_arpa
from weft.interop.convert import SHARD_SIZE, Converted
from weft.interop.convert import convert as convert_model
from weft.interop.listing import Published
from weft.interop.listing import published as published_models
from weft.interop.pooling import pool_heads
from weft.linear.merging import merged
from weft.training.config import DTYPES
from weft.training.starting import opened

Model = str | Path | Loaded
"""A checkpoint's folder, or one that has been loaded."""


def require_device(name: str) -> torch.device:
    """The device of that name.

    Raises:
        UnsupportedError: no such device here.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UnsupportedError(f"the device {name!r} cannot be used here.", where="device",
                               remedy="Use cpu, or see weft doctor for what this machine has.") from None
    return device


def require_dtype(name: str) -> torch.dtype:
    """The dtype of that name.

    Raises:
        InputError: none in which Weft computes.
    """
    if name not in DTYPES:
        raise InputError(f"unknown dtype {name!r}.", where="dtype", remedy=nearest(name, DTYPES))
    return DTYPES[name]


def load(path: Model, *, device: str = "cpu", dtype: str | None = None, revision: str | None = None,
         offline: bool | None = None, allow_pickles: bool = False, purpose: str | None = None) -> Loaded:
    """A checkpoint's model and tokenizer.

    Args:
        path: the folder of a checkpoint, or of a run, whose last checkpoint is taken, or one that `transformers` wrote;
            or a model on the Hugging Face Hub, as ``org/name`` or ``org/name@revision``.
        device: where the model goes.
        dtype: cast the weights to float32, float64 or bfloat16; None keeps them.
        revision: of a model on the Hub: a branch, a tag or a commit.
        offline: ask nobody for it; None: as ``HF_HUB_OFFLINE`` says. See `weft.checkpoints.hub.resolve`.
        allow_pickles: fetch weights that are pickled, where it has no others.
        purpose: for which a language model is needed, in words; any other is refused before its weights are read.
    """
    if not isinstance(path, Loaded):
        path = resolve(path, revision=revision, offline=offline, allow_pickles=allow_pickles)
    return _load(path, device, None if dtype is None else require_dtype(dtype), purpose)


def load_language_model(path: Model, purpose: str) -> tuple[Loaded, LanguageModel]:
    """A checkpoint, and its model, for a purpose that needs probabilities of the next token.

    Raises:
        UnsupportedError: it is no language model.
    """
    loaded = load(path, purpose=purpose)
    return loaded, language_model(loaded.model, purpose, where=str(loaded.path))


def _load(path: Model, device: str, dtype: torch.dtype | None, purpose: str | None = None) -> Loaded:
    place = require_device(device)
    if not isinstance(path, Loaded):
        return opened(find_checkpoint(resolve(path)), device=place, dtype=dtype, purpose=purpose)
    if dtype is not None:
        path.model.to(dtype)
    return path


def convert(source: Model, out: str | Path, *, to: str | None = None, dtype: str | None = None,
            max_shard_size: str = SHARD_SIZE, n_kv_heads: int | None = None, family: str | None = None,
            with_code: bool = False, tokenizer: str | None = None, replace: bool = False) -> Converted:
    """Write a model in another format, verified by reading it again; see `weft.interop.convert`. What the model's
    ``rewrites`` have made of its maps is merged into their matrices.

    Args:
        source: what is converted; an ARPA file becomes a checkpoint, see `weft.interop.arpa.convert`.
        out: the folder or file; an n-gram model whose ``out`` is named ``.arpa`` or ``.arpa.gz`` becomes an ARPA file.
        to: the format; None: as the name of an ARPA file says.
        dtype: cast the weights to float32, float64, bfloat16 or float16; None keeps them.
        n_kv_heads: average the key and value heads of every attention into so many.
        with_code: where no native class of `transformers` can express the model, write a modelling file beside it.
        tokenizer: whose pieces or ids the words of an ARPA file are; None: they are words of text.
        replace: take the place of a folder whose manifest proves that Weft wrote all that is in it.
    """
    others = {"dtype": dtype, "n_kv_heads": n_kv_heads, "family": family, "with_code": with_code,
              "max_shard_size": max_shard_size if max_shard_size != SHARD_SIZE else None}
    if concerns_arpa(source, out, to, tokenizer, others):
        if is_arpa(out):
            return to_arpa(_load(source, "cpu", None), Path(out))
        assert not isinstance(source, Loaded), "a file is named by its path"
        return from_arpa(Path(source), Path(out), given_tokenizer(tokenizer), replace=replace)
    assert to is not None, "`concerns_arpa` asks for one"
    kind = torch.float16 if dtype == "float16" else None if dtype is None else require_dtype(dtype)
    loaded = _load(source, "cpu", None)
    if isinstance(source, Loaded) and kind is not None:
        # The caller's own model keeps its weights.
        loaded = dataclasses.replace(loaded, model=copy.deepcopy(loaded.model))
    plain = merged(loaded.model)
    loaded = dataclasses.replace(loaded, model=plain, config=plain.config)
    pooled = None if n_kv_heads is None else pool_heads(language_model(loaded.model, "pooling heads"), n_kv_heads)
    return convert_model(loaded, Path(out), to=to, pooled=pooled, family=family, max_shard_size=max_shard_size,
                         with_code=with_code, dtype=kind, replace=replace)


def families(only: str | None = None) -> Iterable[Published]:
    """The published models of every family, or of one, with their parameters counted.

    Raises:
        InputError: no family of that name; the nearest is named.
    """
    if only is not None and only not in known_families():
        raise InputError(f"no family is called {only!r}.", where="families", remedy=nearest(only, known_families()))
    return published_models(only)
