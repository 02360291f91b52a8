"""Tokenizers in a run's configuration: ``tokenizer: bytes``, ``tokenizer: {kind: bpe, vocab_size: 2048}``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from weft.core.config import PartField
from weft.core.errors import TokenizerError
from weft.core.part_config import About, PartConfig
from weft.core.registry import REGISTRY, register
from weft.tokenizers.base import Tokenizer, extended
from weft.tokenizers.bpe import SMALLEST_BPE, BPETokenizer
from weft.tokenizers.byte import ByteTokenizer
from weft.tokenizers.character import CharacterTokenizer
from weft.tokenizers.files import KINDS, folder_of_own, load_tokenizer
from weft.tokenizers.library import FileTokenizer
from weft.tokenizers.published import read_sentence_piece, read_tokenizer
from weft.tokenizers.sentence_piece import SentencePieceTokenizer, train_sentence_piece
from weft.tokenizers.specials import MOST_IDS
from weft.tokenizers.unigram import SMALLEST_UNIGRAM, UnigramTokenizer
from weft.tokenizers.wordpiece import WordPieceTokenizer
from weft.tokenizers.words import WordTokenizer

USUAL_SIZE = 2048
"""Default size of a subword vocabulary."""


class TokenizerConfig(PartConfig):
    """Base of a tokenizer's configuration.

    Class attributes:
        tokenizer: the class of tokenizer that ``fit`` returns; it reads what that tokenizer saves.
    """

    group: ClassVar[str] = "tokenizer"
    tokenizer: ClassVar[type[Tokenizer]]

    @abstractmethod
    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Build the tokenizer, trained on ``texts`` if it has anything to learn. Raises `TokenizerError`: the texts, or
        the file named here, cannot give this tokenizer."""

    def from_file(self) -> Tokenizer | None:
        """The tokenizer of the file that the configuration names; None where it names none. Raises `TokenizerError`:
        the file cannot be read."""
        return None

    def known_vocab_size(self) -> int | None:
        """The number of ids, where it does not depend on the training text; else None. Raises `TokenizerError`: the
        file named here cannot be read."""
        return None


@register
class ByteTokenizerConfig(TokenizerConfig):
    """UTF-8 bytes: 256 ids and the end of a document."""

    kind: ClassVar[str] = "bytes"
    about = About(
        source="Xue et al. 2022 (ByT5), section 3.1", equation=r"V = \{0, \ldots, 255\} \cup \{\text{end}\}",
        differs=(("characters", "the vocabulary does not depend on the text, and nothing is unknown."),
                 ("bpe", "nothing is learned, and rows are longer.")))
    tokenizer: ClassVar[type[Tokenizer]] = ByteTokenizer

    def fit(self, texts: Iterable[str]) -> ByteTokenizer:
        return ByteTokenizer()

    def known_vocab_size(self) -> int:
        return ByteTokenizer().vocab_size


@register
class CharacterTokenizerConfig(TokenizerConfig):
    """The characters of the training text, and the end of a document.

    Attributes:
        unknown: encode characters outside the vocabulary as one further id; by default they are an error.
    """

    kind: ClassVar[str] = "characters"
    about = About(
        source="Graves 2013, section 3", equation=r"V = \{\text{characters of the training text}\} \cup \{\text{end}\}",
        differs=(("bytes", "a character is one token, however many bytes it has."),
                 ("words", "tokens are letters in place of words.")))
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
    about = About(
        source="Sennrich et al. 2016, algorithm 1; Radford et al. 2019 (GPT-2), section 2.2",
        equation=r"V \leftarrow V \cup \{ab\}, \qquad (a, b) = \arg\max_{(a, b)} \operatorname{count}(a\, b)",
        differs=(("unigram", "the vocabulary grows by merges, and a text is encoded by repeating them."),
                 ("wordpiece", "pairs are merged by their count, and every byte has an id.")))
    tokenizer: ClassVar[type[Tokenizer]] = BPETokenizer
    vocab_size: int = Field(default=USUAL_SIZE, ge=SMALLEST_BPE, le=MOST_IDS)

    def fit(self, texts: Iterable[str]) -> BPETokenizer:
        return BPETokenizer.train(texts, self.vocab_size)

    def known_vocab_size(self) -> int:
        return self.vocab_size


@register
class WordTokenizerConfig(TokenizerConfig):
    """The white-space-separated words of the training text, ``<eos>`` and ``<unk>``.

    Attributes:
        vocab_size: ids at most, the most frequent words first; None: no limit.
        min_count: rarer words of the training text are unknown.
        end_of_line: every line end is the token ``<eos>``, as in the Penn Treebank protocol.
    """

    kind: ClassVar[str] = "words"
    about = About(
        source="Mikolov et al. 2010, section 3 (the Penn Treebank protocol)",
        equation=r"V = \{\text{the most frequent words}\} \cup \{\langle\text{eos}\rangle, \langle\text{unk}\rangle\}",
        differs=(("characters", "tokens are words, and rare ones are unknown."),
                 ("bpe", "no word is cut into pieces.")))
    tokenizer: ClassVar[type[Tokenizer]] = WordTokenizer
    vocab_size: int | None = Field(default=None, ge=3)
    min_count: int = Field(default=1, ge=1)
    end_of_line: bool = False

    def fit(self, texts: Iterable[str]) -> WordTokenizer:
        return WordTokenizer.train(
            texts, vocab_size=self.vocab_size, min_count=self.min_count, end_of_line=self.end_of_line)


@register
class WordPieceTokenizerConfig(TokenizerConfig):
    """WordPiece learned from the training text, with BERT's conventions.

    Attributes:
        vocab_size: number of ids.
        lowercase: read capitals as small letters and drop accents.
    """

    kind: ClassVar[str] = "wordpiece"
    about = About(
        source="Schuster and Nakajima 2012; Devlin et al. 2019 (BERT), section 3",
        equation=(r"V \leftarrow V \cup \{ab\}, \qquad (a, b) = \arg\max_{(a, b)} \operatorname{count}(a\, b), \qquad "
                  r"w = \text{longest pieces first}"),
        differs=(("bpe", "a word is cut from the left into the longest pieces, and unknown characters make it "
                         "unknown."),))
    tokenizer: ClassVar[type[Tokenizer]] = WordPieceTokenizer
    vocab_size: int = Field(default=USUAL_SIZE, ge=6, le=MOST_IDS)
    lowercase: bool = False

    def fit(self, texts: Iterable[str]) -> WordPieceTokenizer:
        return WordPieceTokenizer.train(texts, self.vocab_size, lowercase=self.lowercase)

    def known_vocab_size(self) -> int:
        return self.vocab_size


@register
class UnigramTokenizerConfig(TokenizerConfig):
    """The unigram language model over subwords, learned from the training text, with bytes for characters it lacks.

    Attributes:
        vocab_size: number of ids, at least 291.
    """

    kind: ClassVar[str] = "unigram"
    about = About(
        source="Kudo 2018, section 3.2",
        equation=r"x^{*} = \arg\max_{x \in S(X)} \sum_i \log p(x_i), \qquad \sum_{v \in V} p(v) = 1",
        differs=(("bpe", "pieces have probabilities, and the most probable division of a text is taken."),
                 ("sentencepiece", "needs no other library.")))
    tokenizer: ClassVar[type[Tokenizer]] = UnigramTokenizer
    vocab_size: int = Field(default=USUAL_SIZE, ge=SMALLEST_UNIGRAM, le=MOST_IDS)

    def fit(self, texts: Iterable[str]) -> UnigramTokenizer:
        return UnigramTokenizer.train(texts, self.vocab_size)

    def known_vocab_size(self) -> int:
        return self.vocab_size


@register
class SentencePieceTokenizerConfig(TokenizerConfig):
    """SentencePiece, through its own library (the extra ``sentencepiece``): learned here, or from a ``.model`` file.

    Attributes:
        path: a model file, or a folder that has one; None: learn a model from the training text.
        vocab_size: number of ids to learn, at least 291; None: 2048.
        algorithm: what to learn, ``unigram`` (None means it) or ``bpe``.
    """

    kind: ClassVar[str] = "sentencepiece"
    about = About(
        source="Kudo and Richardson 2018", equation=r"x^{*} = \arg\max_{x \in S(X)} \sum_i \log p(x_i)",
        differs=(("unigram", "is computed by SentencePiece's own library."), ("file", "can learn a vocabulary too.")))
    tokenizer: ClassVar[type[Tokenizer]] = SentencePieceTokenizer
    path: str | None = None
    vocab_size: int | None = Field(default=None, ge=SMALLEST_UNIGRAM, le=MOST_IDS)
    algorithm: Literal["unigram", "bpe"] | None = None

    @model_validator(mode="after")
    def _require_one_source(self) -> Self:
        if self.path is not None and (self.vocab_size is not None or self.algorithm is not None):
            raise ValueError("a model file is not learned: leave out vocab_size and algorithm, or the path")
        return self

    def fit(self, texts: Iterable[str]) -> SentencePieceTokenizer:
        found = self.from_file()
        if found is not None:
            return found
        return train_sentence_piece(texts, self._learned_size, algorithm=self.algorithm or "unigram")

    def from_file(self) -> SentencePieceTokenizer | None:
        return None if self.path is None else read_sentence_piece(self.path)

    def known_vocab_size(self) -> int:
        found = self.from_file()
        return self._learned_size if found is None else found.vocab_size

    @property
    def _learned_size(self) -> int:
        return self.vocab_size or USUAL_SIZE


@register
class TokenizerFileConfig(TokenizerConfig):
    """A published vocabulary of any kind: ``tokenizer.json``, SentencePiece, GPT-2's, BERT's, RWKV World's; or the
    tokenizer of a checkpoint.

    Attributes:
        path: the file, or the folder that has it, such as a checkpoint's.
        bos: the token that opens a document; by default the one that the files beside it declare.
        eos: the token that closes a document; likewise.
    """

    kind: ClassVar[str] = "file"
    about = About(
        source="the formats of tokenizers, SentencePiece, GPT-2, BERT and RWKV World",
        equation=r"V = \text{as published}",
        differs=(("bpe", "nothing is learned: ids are those of a published model."),
                 ("sentencepiece", "reads any format, without the format's own library.")))
    tokenizer: ClassVar[type[Tokenizer]] = FileTokenizer
    path: str
    bos: str | None = None
    eos: str | None = None

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        return self.from_file()

    def from_file(self) -> Tokenizer:
        own = folder_of_own(Path(self.path))
        if own is None:
            return read_tokenizer(self.path, bos=self.bos, eos=self.eos)
        if self.bos is not None or self.eos is not None:
            raise TokenizerError("bos or eos for the tokenizer of a checkpoint, which has its own.", where=self.path,
                                 remedy="Leave them out.")
        return load_tokenizer(own, kinds=known_tokenizers())

    def known_vocab_size(self) -> int:
        return self.from_file().vocab_size

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(path="tokenizer.json")]


@register
class ExtendedTokenizerConfig(TokenizerConfig):
    """Another tokenizer with further special tokens, such as those of a conversation's turns, with the ids after its
    last. Text is encoded as before: special tokens are recognised where a chat template writes them.

    Attributes:
        extends: the tokenizer: bytes, or one that has a ``tokenizer.json``.
        added_tokens: spellings of the new tokens, in the order of their ids.
    """

    kind: ClassVar[str] = "extended"
    about = About(
        source="the field added_tokens of tokenizer.json", equation=r"V' = V \cup \{v_{|V|}, \ldots, v_{|V| + n - 1}\}",
        differs=(("file", "adds special tokens to another tokenizer, and changes no other id."),))
    tokenizer: ClassVar[type[Tokenizer]] = FileTokenizer
    extends: Annotated[TokenizerConfig, PartField("tokenizer")]
    added_tokens: list[str] = Field(min_length=1)

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        return extended(self.extends.fit(texts), self.added_tokens)

    def from_file(self) -> Tokenizer | None:
        found = self.extends.from_file()
        return None if found is None else extended(found, self.added_tokens)

    def known_vocab_size(self) -> int | None:
        known = self.extends.known_vocab_size()
        return None if known is None else known + len(self.added_tokens)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(extends=ByteTokenizerConfig(), added_tokens=["<|user|>", "<|assistant|>"])]


def known_tokenizers() -> Mapping[str, type[Tokenizer]]:
    """Every class of tokenizer by kind, those of plugins included, for ``load_tokenizer``."""
    configs = [part for part in REGISTRY.parts("tokenizer") if issubclass(part, TokenizerConfig)]
    return {**KINDS, **{config.tokenizer.kind: config.tokenizer for config in configs}}
