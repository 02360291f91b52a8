"""Tokenizers in a run's configuration: ``tokenizer: bytes``, ``tokenizer: {kind: bpe, vocab_size: 2048}``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from pydantic import Field

from weft.core.config import PartConfig
from weft.core.registry import REGISTRY, register
from weft.tokenizers.base import Tokenizer
from weft.tokenizers.bpe import SMALLEST_VOCABULARY, BPETokenizer
from weft.tokenizers.byte import ByteTokenizer
from weft.tokenizers.character import CharacterTokenizer
from weft.tokenizers.files import read_tokenizer_json


class TokenizerConfig(PartConfig):
    """Base of a tokenizer's configuration.

    Class attributes:
        tokenizer: the class of tokenizer that ``fit`` returns; it reads what that tokenizer saves.
    """

    group: ClassVar[str] = "tokenizer"
    tokenizer: ClassVar[type[Tokenizer]]

    @abstractmethod
    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer, trained on ``texts`` if it learns anything.

        Raises:
            TokenizerError: the texts, or the file named here, cannot give this tokenizer.
        """


@register
class ByteTokenizerConfig(TokenizerConfig):
    """UTF-8 bytes: 256 ids and the end of a document."""

    kind: ClassVar[str] = "bytes"
    source: ClassVar[str] = "Xue et al. 2022 (ByT5), section 3.1"
    tokenizer: ClassVar[type[Tokenizer]] = ByteTokenizer

    def fit(self, texts: Iterable[str]) -> ByteTokenizer:
        return ByteTokenizer()


@register
class CharacterTokenizerConfig(TokenizerConfig):
    """The characters of the training text, and the end of a document.

    Attributes:
        unknown: give characters outside the vocabulary an id of their own; without it they are an error.
    """

    kind: ClassVar[str] = "characters"
    source: ClassVar[str] = "Graves 2013, section 3"
    tokenizer: ClassVar[type[Tokenizer]] = CharacterTokenizer
    unknown: bool = False

    def fit(self, texts: Iterable[str]) -> CharacterTokenizer:
        return CharacterTokenizer.train(texts, unknown=self.unknown)


@register
class BPETokenizerConfig(TokenizerConfig):
    """Byte-level BPE learned from the training text.

    Attributes:
        vocab_size: number of ids, at least 257.
    """

    kind: ClassVar[str] = "bpe"
    source: ClassVar[str] = "Sennrich et al. 2016, algorithm 1; Radford et al. 2019 (GPT-2), section 2.2"
    tokenizer: ClassVar[type[Tokenizer]] = BPETokenizer
    vocab_size: int = Field(default=2048, ge=SMALLEST_VOCABULARY)

    def fit(self, texts: Iterable[str]) -> BPETokenizer:
        return BPETokenizer.train(texts, self.vocab_size)


@register
class TokenizerFileConfig(TokenizerConfig):
    """A ``tokenizer.json`` of the ``tokenizers`` library, of any algorithm.

    Attributes:
        path: the file, or a folder that has one.
        bos: the token that opens a document; by default what the file's ``tokenizer_config.json`` says.
        eos: the token that closes a document; likewise.
    """

    kind: ClassVar[str] = "file"
    source: ClassVar[str] = "the file format of the tokenizers library"
    tokenizer: ClassVar[type[Tokenizer]] = BPETokenizer
    path: str
    bos: str | None = None
    eos: str | None = None

    def fit(self, texts: Iterable[str]) -> BPETokenizer:
        return read_tokenizer_json(self.path, bos=self.bos, eos=self.eos)

    @classmethod
    def examples(cls) -> list[TokenizerFileConfig]:
        return [cls(path="tokenizer.json")]


def known_tokenizers() -> Mapping[str, type[Tokenizer]]:
    """Every registered class of tokenizer by kind, plugins' included: what ``load_tokenizer`` needs to read them."""
    configs = [part for part in REGISTRY.parts("tokenizer") if issubclass(part, TokenizerConfig)]
    return {config.tokenizer.kind: config.tokenizer for config in configs}
