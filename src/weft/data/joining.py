"""Streams of several sources as one, and one source of it again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.errors import DataError
from weft.data.array import JoinedArray, TokenArray, join
from weft.data.duplicates import Repeated
from weft.data.stream import SCORED, JoinedSource, Sources, TokenStream, WhenCapped


def joined(streams: Mapping[str, TokenStream], weights: Mapping[str, float],
           caps: Mapping[str, float | None] | None = None, *, when_capped: WhenCapped = "share",
           name: str = "mixture") -> TokenStream:
    """One stream of several, whose arrays are read where they are: nothing is copied.

    Args:
        streams: by the names of their sources, in order; all of one tokenizer.
        caps: on the epochs of the sources; None: there is none.
        when_capped: see `weft.data.stream.Sources`.
        name: of the whole, for messages.

    Raises:
        DataError: the streams were made by different tokenizers.
    """
    _require_one_tokenizer(streams)
    found = list(streams.values())
    ends = np.cumsum([len(stream) for stream in found]).tolist()
    caps = caps or {}
    sources = tuple(JoinedSource(each, last - len(stream), last, weights[each], caps.get(each))
                    for (each, stream), last in zip(streams.items(), ends, strict=True))
    digest = hashlib.sha256("\0".join(f"{each}\0{stream.corpus_sha256}"
                                      for each, stream in streams.items()).encode()).hexdigest()
    # One tokenizer made all of them, so that either each has lost text or none.
    lost = [stream.lost for stream in found if stream.lost is not None]
    return replace(found[0], tokens=_together([stream.tokens for stream in found]),
                   begins=_together([stream.begins for stream in found]),
                   byte_lengths=_together([stream.byte_lengths for stream in found]),
                   flags=_flags(found), lost=_together(lost) if lost else None, corpus=name,
                   corpus_sha256=digest, repeated=_repeated(found),
                   sources=Sources(sources, when_capped))


def parted(stream: TokenStream) -> dict[str, TokenStream]:
    """The streams of the sources of a joined one, by name, as views of it."""
    assert stream.sources is not None, "called for a joined stream"
    found = {}
    for source in stream.sources.each:
        here = slice(source.first, source.last)
        flags, lost = (None if column is None else _part(column, here) for column in (stream.flags, stream.lost))
        found[source.name] = replace(stream, tokens=_part(stream.tokens, here), begins=_part(stream.begins, here),
                                     byte_lengths=_part(stream.byte_lengths, here), flags=flags, lost=lost,
                                     corpus=source.name, sources=None)
    return found


def _part(values: TokenArray, here: slice) -> TokenArray:
    """A range of an array without a copy."""
    return values.narrow(here.start, here.stop) if isinstance(values, JoinedArray) else values[here]


def _together(arrays: Sequence[TokenArray]) -> TokenArray:
    return join([part for array in arrays for part in (array.parts if isinstance(array, JoinedArray) else (array,))])


def _flags(streams: Sequence[TokenStream]) -> TokenArray | None:
    if all(stream.flags is None for stream in streams):
        return None
    every: Any = np.uint8(SCORED)
    return _together([np.broadcast_to(every, (len(stream),)) if stream.flags is None else stream.flags
                      for stream in streams])


def _repeated(streams: Sequence[TokenStream]) -> Repeated | None:
    known = [stream.repeated for stream in streams if stream.repeated is not None]
    if len(known) < len(streams):
        return None
    found, searched = sum(each.found for each in known), sum(each.of for each in known)
    shares = [(each.share, len(stream)) for each, stream in zip(known, streams, strict=True) if each.share is not None]
    whole = sum(size for _, size in shares)
    share = sum(part * size for part, size in shares) / whole if whole and len(shares) == len(known) else None
    return Repeated(found, searched, share)


def _require_one_tokenizer(streams: Mapping[str, TokenStream]) -> None:
    first, *others = streams.items()
    for name, stream in others:
        if stream.tokenizer_sha256 != first[1].tokenizer_sha256:
            raise DataError(f"its tokens were made with another tokenizer than those of {first[0]!r}.",
                            where=f"data.sources.{name}", remedy="Prepare all of them with one tokenizer, or give "
                            "their texts.")
