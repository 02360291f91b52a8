"""Text that a tokenizer loses is paid for by a code that gives the texts of the same tokens 1 in all at most."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import tokenizers
import torch

from weft.data import Corpus, Document, encode_corpus
from weft.data.embedded import embedded_corpus
from weft.evaluation import Evaluation, evaluate
from weft.models.ngram import NgramConfig
from weft.tokenizers import Tokenizer
from weft.tokenizers.bpe import BPETokenizer
from weft.tokenizers.byte import ByteTokenizer
from weft.tokenizers.character import CharacterTokenizer
from weft.tokenizers.library import FileTokenizer
from weft.tokenizers.lost import lost_nats, untold_nats
from weft.tokenizers.sentence_piece import train_sentence_piece
from weft.tokenizers.split_points import TextPart, measured
from weft.tokenizers.unigram import UnigramTokenizer
from weft.tokenizers.wordpiece import WordPieceTokenizer
from weft.tokenizers.words import WordTokenizer

LEARNT = ["a aa Aa aA é aé éa\na a\nA aaa e ee ea ae " * 30 + "the quick brown fox jumps over the lazy dog 0123456789 "]
ALPHABET = "aA é\n"


def _file(normalizer: tokenizers.normalizers.Normalizer, *, byte_level: bool = False) -> FileTokenizer:
    parts = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None if byte_level else "?"))
    parts.normalizer = normalizer
    cuts, ends = tokenizers.pre_tokenizers, tokenizers.decoders
    parts.pre_tokenizer = cuts.ByteLevel(add_prefix_space=False) if byte_level else cuts.Whitespace()
    if byte_level:
        parts.decoder = ends.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=270, special_tokens=["?"], show_progress=False,
                                             initial_alphabet=cuts.ByteLevel.alphabet() if byte_level else [])
    parts.train_from_iterator(LEARNT, trainer)
    return FileTokenizer(parts.to_str(), bos="?", eos="?")


def _without_bytes() -> FileTokenizer:
    """A byte-level vocabulary that lacks the bytes of é, which its model then drops."""
    declared = json.loads(_file(tokenizers.normalizers.Sequence([]), byte_level=True).files()["tokenizer.json"])
    declared["normalizer"] = None
    model = declared["model"]
    model["vocab"] = {token: place for token, place in model["vocab"].items() if not set(token) & set("Ã©")}
    model["merges"] = [pair for pair in model["merges"] if not set("".join(pair)) & set("Ã©")]
    return FileTokenizer(json.dumps(declared), bos="?", eos="?")


def _kinds() -> dict[str, Callable[[], Tokenizer]]:
    parts = tokenizers.normalizers
    return {
        "bytes": ByteTokenizer,
        "bpe": lambda: BPETokenizer.train(LEARNT, 262),
        "characters": lambda: CharacterTokenizer(ALPHABET),
        "characters, unknown": lambda: CharacterTokenizer("a ", unknown=True),
        "words": lambda: WordTokenizer(["a", "aa", "aA"]),
        "words, lines": lambda: WordTokenizer(["a", "é"], end_of_line=True),
        "wordpiece": lambda: WordPieceTokenizer.train(LEARNT, 80),
        "wordpiece, small letters": lambda: WordPieceTokenizer.train(LEARNT, 75, lowercase=True),
        "unigram": lambda: UnigramTokenizer.train(LEARNT, 308),
        "sentencepiece": lambda: train_sentence_piece(LEARNT, 300, algorithm="bpe"),
        "file, NFKC": lambda: _file(parts.NFKC()),
        "file, small letters without accents": lambda: _file(parts.Sequence([parts.NFD(), parts.StripAccents(),
                                                                             parts.Lowercase()])),
        "file, bytes of NFC": lambda: _file(parts.NFC(), byte_level=True),
        "file, bytes that are missing": _without_bytes,
    }


@pytest.mark.parametrize("kind", sorted(_kinds()))
def test_the_texts_of_the_same_tokens_sum_to_1_at_most(kind: str) -> None:
    tokenizer = _kinds()[kind]()
    texts = ["".join(each) for length in range(6) for each in product(ALPHABET, repeat=length)]
    texts += ["".join(each) for length in range(4) for each in product("eé\u0301 ﬁ\u2581", repeat=length)]
    texts = list(dict.fromkeys(texts))
    if kind == "characters":
        texts = [text for text in texts if set(text) <= set(ALPHABET)]
    sums: dict[bytes, float] = {}
    for text, found in zip(texts, measured(tokenizer, [TextPart(text) for text in texts]), strict=True):
        untold = 0.0 if len(found.ids) else untold_nats(text)
        paid = untold if found.lost is None else float(found.lost.sum())
        key = found.ids.tobytes()
        sums[key] = sums.get(key, 0.0) + math.exp(-paid)
    assert len(sums) < len(texts) or tokenizer.keeps_text or kind in ("sentencepiece",)
    # Nats are kept in float32, whose sums of up to 6 tokens are exact to some 1e-6.
    assert max(sums.values()) <= 1 + 1e-5, kind
    if tokenizer.keeps_text:
        assert len(sums) == len(texts)


def test_only_tokenizers_that_restore_every_text_by_how_they_are_made_pay_nothing() -> None:
    keeping = {kind for kind, make in _kinds().items() if make().keeps_text}
    assert keeping == {"bytes", "bpe", "characters"}


def test_the_price_of_an_unknown_word_is_that_of_its_spelling() -> None:
    words = WordTokenizer(["a", "b"])
    assert _bits(words, "a b a") == pytest.approx(-math.log2(1 - 2**-10), rel=1e-5)
    kinds = _dirichlet([0, 1, 0]) + _dirichlet([0, 0, 0], count=5)
    assert _bits(words, "a zebra a") == pytest.approx(10 + kinds + 6 * math.log2(257), rel=1e-5)
    assert untold_nats(" \n") / math.log(2) == pytest.approx(10 + 3 * math.log2(257))


def _bits(tokenizer: Tokenizer, text: str) -> float:
    found = lost_nats(tokenizer, text, tokenizer.measure(text))
    assert found is not None
    return float(found.sum()) / math.log(2)


def _dirichlet(kinds: list[int], count: int = 2) -> float:
    """Bits of a sequence, one kind after another by Pólya's urn."""
    urn, bits = [8.0, *[0.5] * (count - 1)], 0.0
    for kind in kinds:
        bits -= math.log2(urn[kind] / sum(urn))
        urn[kind] += 1
    return bits


def test_a_text_without_tokens_counts_with_the_token_that_closes_its_document() -> None:
    words = WordTokenizer(["a"])
    documents = (Document("one", "a"), Document("two", " \n"), Document("three", "a"))
    stream = encode_corpus(Corpus("spaces", documents), words)
    assert stream.tokens.tolist() == [0, 2, 0, 0, 2, 0]
    assert stream.byte_lengths.tolist() == [0, 1, 0, 2, 1, 0]
    assert stream.lost is not None
    assert stream.lost[3] == pytest.approx(untold_nats(" \n"))
    assert np.count_nonzero(stream.lost) == 3


@pytest.mark.parametrize("lossy", ["words", "small letters"])
def test_a_tokenizer_that_loses_text_does_not_win(lossy: str) -> None:
    """The same kind of model, counted: over bytes, over 30 words, over WordPiece as written and in small letters."""
    train, held = embedded_corpus().limited(300_000).split(0.2)
    texts = [document.text for document in train.documents]
    if lossy == "words":
        keeping, losing = ByteTokenizer(), WordTokenizer.train(texts, vocab_size=30)
    else:
        keeping, losing = (WordPieceTokenizer.train(texts, 600, lowercase=small) for small in (False, True))
    kept, lost = (_evaluated(each, train, held) for each in (keeping, losing))
    assert kept.bits_per_byte is not None and lost.bits_per_byte is not None
    unpaid = lost.nats / math.log(2) / lost.bytes
    assert unpaid < kept.bits_per_byte < lost.bits_per_byte
    assert lost.lost_bits_per_byte == pytest.approx(lost.bits_per_byte - unpaid)
    assert lost.perplexity == pytest.approx(math.exp(lost.nats / lost.tokens))
    assert lost.to_json()["lost_bits_per_byte"] == pytest.approx(lost.lost_bits_per_byte)
    assert math.fsum(each.lost for each in lost.documents) == pytest.approx(lost.lost)


def _evaluated(tokenizer: Tokenizer, train: Corpus, held: Corpus) -> Evaluation:
    model = NgramConfig(order=3, vocab_size=tokenizer.vocab_size, context=128).build()
    stream = encode_corpus(train, tokenizer)
    model.fit(torch.from_numpy(stream.tokens.astype(np.int64)), torch.from_numpy(np.array(stream.begins)))
    return evaluate(model, encode_corpus(held, tokenizer), context=128, by_document=True)
