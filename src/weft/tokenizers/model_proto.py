"""The few facts of a SentencePiece model file that its library does not expose, read from its protocol buffer.

Field numbers are those of ``sentencepiece_model.proto``: ModelProto 3 normalizer_spec, 5 denormalizer_spec;
NormalizerSpec 2 precompiled_charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


@final
@dataclass(frozen=True)
class ModelFacts:
    """The settings of a model on which decoding depends.

    Attributes:
        add_dummy_prefix: whether a space is put before every text.
        remove_extra_whitespaces: whether spaces at both ends are dropped and runs of spaces become one.
        denormalizes: whether decoding rewrites the text by rules of the model.
    """

    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    denormalizes: bool = False


def read_model_facts(model: bytes) -> ModelFacts:
    """Read the facts of a model file; missing fields have the format's defaults.

    Raises:
        ValueError: not a protocol buffer.
    """
    messages = {number: value for number, value in _fields(model) if isinstance(value, bytes)}
    normalizer = dict(_fields(messages.get(3, b"")))
    denormalizer = dict(_fields(messages.get(5, b"")))
    return ModelFacts(bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1)), bool(denormalizer.get(2)))


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message, in order."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        wire = key & 7
        if wire == VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        size, place = _varint(message, place) if wire == BYTES else (_fixed(wire), place)
        if place + size > len(message):
            raise ValueError(f"field {key >> 3} ends beyond the message")
        yield key >> 3, message[place : place + size]
        place += size


def _fixed(wire: int) -> int:
    if wire not in (FIXED32, FIXED64):
        raise ValueError(f"wire type {wire}")
    return 4 if wire == FIXED32 else 8


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError("a number ends beyond the message")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number of more than ten bytes")
