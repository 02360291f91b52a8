"""Subword tokenizers of the ``tokenizers`` library: byte-level BPE to train, any ``tokenizer.json`` to load."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import tokenizers
from numpy.typing import NDArray

from weft.core.errors import TokenizerError
from weft.tokenizers.base import Encoded, Ids, IdsLike, Tokenizer, check_ids, utf8
from weft.tokenizers.byte_level import id_bytes, lengths_are_exact
from weft.tokenizers.spans import byte_spans
from weft.tokenizers.streaming import ByteStream, StreamDecoder, TextStream

LIBRARY_FILE = "tokenizer.json"
END_OF_DOCUMENT = "<|endoftext|>"
SMALLEST_VOCABULARY = 257


@final
class BPETokenizer(Tokenizer):
    """Byte-level BPE, or whatever algorithm a given ``tokenizer.json`` declares.

    ``train`` merges the most frequent pairs of the text's bytes (Sennrich et al. 2016, algorithm 1; on bytes as in
    GPT-2, Radford et al. 2019, section 2.2), so any text can be expressed and decoded exactly. A file may declare
    another algorithm, a normaliser or a leading space; then decoding need not give back the text, while ``measure``
    still counts the bytes of the source exactly, from the spans that the library reports.

    Three things that such files do silently are off here: truncation, padding, and reading special tokens in text.

    Args:
        source: the text of a ``tokenizer.json``.
        bos: the token that opens a document, or None.
        eos: the token that closes a document, or None.

    Raises:
        TokenizerError: not a ``tokenizer.json``, or one that lacks ``bos`` or ``eos``.
    """

    kind: ClassVar[str] = "bpe"

    def __init__(self, source: str, *, bos: str | None = None, eos: str | None = None) -> None:
        self._source, self._bos, self._eos = source, bos, eos
        self._library = _parse(source)
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        self._vocab_size = 1 + max(self._library.get_vocab(with_added_tokens=True).values(), default=-1)
        self._bos_id, self._eos_id = self._special(bos), self._special(eos)
        declared = json.loads(source)
        self._bytes = id_bytes(self._library, declared, self._vocab_size)
        self._exact = self._bytes is not None and lengths_are_exact(declared)
        self._lengths = np.array([len(piece) for piece in self._bytes or ()], dtype=np.int32)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> BPETokenizer:
        """Byte-level BPE learned from ``texts``: the 256 bytes, the end of a document, and merges.

        Raises:
            TokenizerError: a ``vocab_size`` below 257, or one that the text is too small or too uniform to fill.
        """
        if vocab_size < SMALLEST_VOCABULARY:
            raise TokenizerError(
                f"byte-level BPE needs at least {SMALLEST_VOCABULARY} ids (256 bytes and the end of a document), "
                f"received {vocab_size}.",
                where="vocab_size",
                remedy="Raise it, or use the tokenizer 'bytes'.",
            )
        library = _train(texts, vocab_size)
        reached = library.get_vocab_size()
        if reached < vocab_size:
            raise TokenizerError(
                f"the training text gives only {reached} ids (no further pair occurs twice), received {vocab_size}.",
                where="vocab_size",
                remedy=f"Give more text, or ask for at most {reached}.",
            )
        return cls(library.to_str(), bos=END_OF_DOCUMENT, eos=END_OF_DOCUMENT)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def bos_id(self) -> int | None:
        return self._bos_id

    @property
    def eos_id(self) -> int | None:
        return self._eos_id

    @property
    def name(self) -> str:
        return f"{type(self._library.model).__name__}-{self.vocab_size}"

    def encode_array(self, text: str) -> Ids:
        utf8(text)
        return np.array(self._library.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def measure(self, text: str) -> Encoded:
        return self.measure_many([text])[0]

    def measure_many(self, texts: Sequence[str]) -> list[Encoded]:
        for text in texts:
            utf8(text)
        if self._exact:
            quick = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
            arrays = [np.array(item.ids, dtype=np.int32) for item in quick]
            return [Encoded(ids, self._lengths[ids]) for ids in arrays]
        found = self._library.encode_batch(list(texts), add_special_tokens=False)
        return [
            Encoded(np.array(item.ids, dtype=np.int32), byte_spans(text, item.offsets))
            for text, item in zip(texts, found, strict=True)
        ]

    def decode(self, ids: IdsLike) -> str:
        array = check_ids(ids, self.vocab_size)
        if self._bytes is None:
            return self._library.decode(array.tolist(), skip_special_tokens=True)
        return b"".join(self._bytes[i] for i in array).decode("utf-8", errors="replace")

    def byte_lengths(self, ids: IdsLike) -> NDArray[np.int32]:
        array = check_ids(ids, self.vocab_size)
        if not self._exact:
            raise TokenizerError(
                f"the ids of this {self.name} tokenizer do not say how many bytes of text they stand for, since it "
                "normalises the text or adds to it.",
                where="ids",
                remedy="Measure the text itself, with measure(text).",
            )
        return self._lengths[array]

    def stream(self) -> StreamDecoder:
        return TextStream(self.decode) if self._bytes is None else ByteStream(self._token_bytes)

    def settings(self) -> dict[str, Any]:
        return {"bos": self._bos, "eos": self._eos}

    def files(self) -> dict[str, str]:
        return {LIBRARY_FILE: self._source}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], folder: Path) -> BPETokenizer:
        source = (folder / LIBRARY_FILE).read_bytes().decode("utf-8")
        return cls(source, bos=settings["bos"], eos=settings["eos"])

    def _special(self, token: str | None) -> int | None:
        if token is None:
            return None
        found = self._library.token_to_id(token)
        if found is None:
            raise TokenizerError(
                f"the token {token!r} is not in the vocabulary of {self._vocab_size} ids.",
                where=LIBRARY_FILE,
                remedy="Name a token that the file has as bos and eos, or none.",
            )
        return int(found)

    def _token_bytes(self, token: int) -> bytes:
        check_ids([token], self.vocab_size)
        assert self._bytes is not None
        return self._bytes[token]


def _parse(source: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(source)
    except Exception as error:  # the library raises bare Exception for whatever its parser refuses
        raise TokenizerError(
            f"not a tokenizer of the tokenizers library ({error}).",
            where=LIBRARY_FILE,
            remedy="Give a tokenizer.json as the tokenizers library writes it.",
        ) from None


def _train(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    return library
