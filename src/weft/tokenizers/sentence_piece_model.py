"""SentencePiece models as files: learned from a text, opened by the ``sentencepiece`` library, and their table of
pieces.

The few facts of a SentencePiece model file that its library does not expose, read from its protocol buffer.

Field numbers are those of ``sentencepiece_model.proto``: ModelProto 3 normalizer_spec, 5 denormalizer_spec;
NormalizerSpec 2 precompiled_charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.core.errors import MissingExtra, TokenizerError
from weft.tokenizers.base import utf8
from weft.tokenizers.library_pieces import SPACE
from weft.tokenizers.pieces import PieceTable
from weft.tokenizers.specials import AddedToken, require_ids
from weft.tokenizers.split_points import parted

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor


MODEL_FILE = "tokenizer.model"


def learned_model(texts: Iterable[str], vocab_size: int, algorithm: str) -> bytes:
    """The content of a ``.model`` file learned from the lines of ``texts``; see `train_sentence_piece`."""
    require_ids(vocab_size, "vocab_size")
    library = _import()
    written = io.BytesIO()
    try:
        library.SentencePieceTrainer.train(sentence_iterator=_lines(texts), model_writer=written, vocab_size=vocab_size,
                                           model_type=algorithm, byte_fallback=True, normalization_rule_name="identity",
                                           remove_extra_whitespaces=False, max_sentence_length=1 << 20, num_threads=1,
                                           minloglevel=3)
    except (RuntimeError, OSError) as error:
        raise TokenizerError(f"SentencePiece cannot learn {vocab_size} pieces from the training text "
                             f"({str(error).rpartition('] ')[2] or 'it is empty'}).", where="vocab_size",
                             remedy="Request another number, or give more text.") from None
    return written.getvalue()


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield every line that is not empty."""
    for parts in parted(texts):
        begun = ""
        for part in parts:
            utf8(part)
            *lines, begun = (begun + part).split("\n")
            yield from filter(None, lines)
        if begun:
            yield begun


def _import() -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise MissingExtra("sentencepiece", "sentencepiece", "a SentencePiece model") from None
    return sentencepiece


def opened(model: bytes) -> tuple[SentencePieceProcessor, ModelFacts]:
    """The library's processor for the content of a ``.model`` file, and what the file declares.

    Raises:
        TokenizerError: not a SentencePiece model, or one that rewrites what it decodes.
        MissingExtra: the library is not installed.
    """
    processor: SentencePieceProcessor = _import().SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
        facts = read_model_facts(model)
    except (RuntimeError, OSError, ValueError) as error:
        raise TokenizerError(
            f"not a SentencePiece model ({str(error).rpartition('] ')[2] or 'its bytes cannot be parsed'}).",
            where=MODEL_FILE,
            remedy="Give the .model file whole; where a tokenizer.json lies beside a file of another format, use that.",
        ) from None
    if not 0 <= processor.unk_id() < processor.get_piece_size():
        raise TokenizerError("the model has no piece for characters that it does not know.", where=MODEL_FILE,
                             remedy="Give the .model file whole.")
    if facts.denormalizes:
        raise TokenizerError("the model rewrites decoded text (a denormalizer_spec), which Weft does not support.",
                             where=MODEL_FILE, remedy="Train the model without denormalization rules.")
    return processor, facts


def table_of(library: SentencePieceProcessor, added: Sequence[AddedToken], facts: ModelFacts) -> PieceTable:
    """The bytes of every id, those of a model's vocabulary and of added tokens."""
    size = max([library.get_piece_size(), *(1 + token.id for token in added)])
    require_ids(size, MODEL_FILE)
    pieces, specials, opening = [b""] * size, {}, {}
    for place in range(library.get_piece_size()):
        piece: str = library.id_to_piece(place)
        if library.is_control(place):
            specials[place] = piece.encode()
        elif library.is_byte(place):
            pieces[place] = bytes([int(piece[3:5], 16)])
        elif library.is_unknown(place):
            pieces[place] = library.decode([place]).encode()
        else:
            pieces[place] = piece.replace(SPACE, " ").encode()
            if piece.startswith(SPACE) and (facts.add_dummy_prefix or facts.remove_extra_whitespaces):
                opening[place] = pieces[place][1:]
    for token in added:
        pieces[token.id] = b"" if token.special else token.content.encode()
        opening.pop(token.id, None)
        if token.special:
            specials[token.id] = token.content.encode()
    return PieceTable(pieces, specials, opening=opening, patient=facts.remove_extra_whitespaces)


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


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
    """Read the facts of a model file; missing fields have the format's defaults. Raises `ValueError`: not a protocol
    buffer."""
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
