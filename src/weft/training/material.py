"""From a run's data settings to streams of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from weft.core.errors import ConfigError
from weft.data import Corpus, TokenStream, embedded_corpus, encode_corpus, read_text
from weft.data.corpus import Split
from weft.tokenizers import Tokenizer
from weft.training.config import DataSettings, RunConfig


@final
@dataclass(frozen=True, eq=False)
class Material:
    """What a run trains on and is measured by.

    Attributes:
        corpus: name, version, size and hash of the whole text, in one line.
        corpus_sha256: hash of the whole text.
        tokenizer: trained on the training text alone, if it learns anything.
        train: tokens of the training text.
        validation: tokens of the text held out.
    """

    corpus: str
    corpus_sha256: str
    tokenizer: Tokenizer
    train: TokenStream
    validation: TokenStream


def read_corpus(settings: DataSettings) -> Corpus:
    """The whole text, limited.

    Raises:
        DataError: it cannot be read.
    """
    corpus = embedded_corpus() if settings.path is None else read_text(settings.path)
    return corpus if settings.max_bytes is None else corpus.limited(settings.max_bytes, seed=settings.split_seed)


def split_corpus(settings: DataSettings) -> Split:
    """The training text and the text held out.

    Raises:
        DataError: it cannot be read, or is too small to split.
    """
    return read_corpus(settings).split(settings.validation, seed=settings.split_seed)


def prepare(config: RunConfig) -> Material:
    """Read, split and encode the run's text.

    Raises:
        DataError: the text cannot be used.
        TokenizerError: the tokenizer cannot be made, or cannot express the text.
        ConfigError: the model's vocabulary is smaller than the tokenizer's.
    """
    corpus = read_corpus(config.data)
    train, validation = corpus.split(config.data.validation, seed=config.data.split_seed)
    tokenizer = config.tokenizer.fit(train.texts())
    if config.model.vocab_size < tokenizer.vocab_size:
        raise ConfigError([f"model.vocab_size: {config.model.vocab_size}, while the tokenizer has "
                           f"{tokenizer.vocab_size} ids. Leave it out, and it is filled in."])
    return Material(corpus.describe(), corpus.sha256, tokenizer, encode_corpus(train, tokenizer),
                    encode_corpus(validation, tokenizer))
