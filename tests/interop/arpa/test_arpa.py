"""ARPA files of n-gram models: there and back through any tokenizer, and as others write and read them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nltk.lm import MLE
from nltk.lm.preprocessing import padded_everygram_pipeline

from weft.api import check, convert, score
from weft.checkpoints import load_checkpoint, save_checkpoint
from weft.core.config import parse_part
from weft.core.errors import DataError, InputError, OccupiedError, UnsupportedError
from weft.data import Corpus, Document, TokenStream, encode_corpus
from weft.evaluation import evaluate
from weft.laws import CheckResult
from weft.models.ngram import NgramConfig, NgramModel
from weft.tokenizers import BPETokenizer, ByteTokenizer, CharacterTokenizer, Tokenizer, WordTokenizer
from weft.tokenizers.sentence_piece import train_sentence_piece

LMPLZ = Path(__file__).parents[2] / "ngram/lmplz"
LINES = ["the cow eats 50% grass", "the cow sees the dog", "a dog  eats <unk> meat", "é grass <s> grows 12 3",
         "the\tdog sees a cow 12"]
TEXT = [f"{line}{'!' * (place % 3)} {place % 7}" for place in range(60) for line in LINES]
Arpa = dict[tuple[str, ...], tuple[float, float]]


def corpus(lines: list[str]) -> Corpus:
    return Corpus("lines", tuple(Document(f"line {place}", line) for place, line in enumerate(lines)))


def counted(tokenizer: Tokenizer, **options: Any) -> tuple[NgramModel, TokenStream]:
    """A trigram of `TEXT`, in which contexts read the token that opens documents as their start where there is none
    that only closes them."""
    stream = encode_corpus(corpus(TEXT), tokenizer)
    end = tokenizer.eos_id if tokenizer.eos_id == tokenizer.bos_id else None
    model = NgramModel(NgramConfig(vocab_size=tokenizer.vocab_size, order=3, end=end, **options))
    model.fit(torch.from_numpy(stream.tokens.astype(np.int64)), torch.from_numpy(np.asarray(stream.begins)))
    return model, stream


def saved(folder: Path, tokenizer: Tokenizer, **options: Any) -> Path:
    return save_checkpoint(folder, counted(tokenizer, **options)[0], tokenizer)


def read_by_hand(path: Path) -> Arpa:
    """An ARPA file as a dictionary: log10 of probability and back-off weight for each n-gram."""
    found: Arpa = {}
    order = 0
    for line in path.read_text().splitlines(keepends=True):
        if line.startswith("\\") and line.endswith("-grams:\n"):
            order = int(line[1:-8])
        elif order and "\t" in line:
            prob, words, *weight = line.rstrip("\n").split("\t")
            found[tuple(words.split(" "))] = (float(prob), float(weight[0]) if weight else 0.0)
            assert len(words.split(" ")) == order
    return found


def log10_prob(model: Arpa, words: tuple[str, ...]) -> float:
    """log10 p(last word | those before), by the definition."""
    if words in model:
        return model[words][0]
    return -99.0 if len(words) == 1 else model.get(words[:-1], (0.0, 0.0))[1] + log10_prob(model, words[1:])


def sentence_nats(model: Arpa, words: list[str], order: int) -> float:
    padded = ["<s>", *words, "</s>"]
    return -math.log(10) * sum(log10_prob(model, tuple(padded[max(0, place - order + 1):place + 1]))
                               for place in range(1, len(padded)))


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "words": lambda: WordTokenizer.train([line.replace("<s>", "s") for line in TEXT]), "bytes": ByteTokenizer,
    "bpe": lambda: BPETokenizer.train(TEXT, 290), "characters": lambda: CharacterTokenizer.train(TEXT, unknown=True),
    "sentencepiece": lambda: train_sentence_piece(TEXT, 300, algorithm="bpe")}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_there_and_back_through_every_kind_of_tokenizer(tmp_path: Path, kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    source, arpa = saved(tmp_path / "source", tokenizer), tmp_path / "model.arpa.gz"
    written = convert(source, arpa)
    # Two roundings of a float64 between nats and log10.
    assert written.target == "arpa" and written.difference < 1e-13
    back = convert(arpa, tmp_path / "back", tokenizer=None if kind == "words" else str(source))
    assert back.target == "weft" and back.difference == 0
    again = load_checkpoint(tmp_path / "back")
    assert again.tokenizer is not None and again.tokenizer.fingerprint() == tokenizer.fingerprint()
    assert again.facts["arpa"]["file"] == "model.arpa.gz"
    stream = encode_corpus(corpus(["the cow grows 50% meat", "é  dog"]), tokenizer)
    one, other = (evaluate(load_checkpoint(path).model, stream) for path in (source, tmp_path / "back"))
    assert one.loss == pytest.approx(other.loss, rel=1e-12)


def test_words_are_themselves_and_sentences_have_the_usual_marks(tmp_path: Path) -> None:
    """What nltk counts in the same sentences is what the file says, and nothing else is possible."""
    tokenizer = WordTokenizer.train([line.replace("<s>", "s") for line in TEXT])
    convert(saved(tmp_path / "source", tokenizer, smoothing="maximum_likelihood"), tmp_path / "model.arpa")
    found = read_by_hand(tmp_path / "model.arpa")
    sentences = [["<unk>" if word == "<s>" else word for word in line.split()] for line in TEXT]
    reference = MLE(3)
    reference.fit(*padded_everygram_pipeline(3, sentences))
    trigrams = {ngram: prob for ngram, (prob, _) in found.items() if len(ngram) == 3}
    assert len(trigrams) > 100
    for ngram, prob in trigrams.items():
        assert 10**prob == pytest.approx(reference.score(ngram[-1], ngram[:-1]), rel=1e-12), ngram
    assert {("<s>", "the"), ("<unk>", "meat")} <= set(found)
    assert not any("<s>" in ngram[1:] or "</s>" in ngram[:-1] for ngram in found)


def test_pieces_are_spelled_without_white_space_and_distinct(tmp_path: Path) -> None:
    convert(saved(tmp_path / "c", CharacterTokenizer.train(TEXT)), tmp_path / "c.arpa")
    words = {ngram[0] for ngram in read_by_hand(tmp_path / "c.arpa") if len(ngram) == 1}
    assert {"%20", "%09", "%25", "é", "</s>", "<s>"} < words
    convert(saved(tmp_path / "y", ByteTokenizer()), tmp_path / "y.arpa")
    assert {"a", "%0A", "\N{REPLACEMENT CHARACTER}%#195"} < {ngram[0] for ngram in read_by_hand(tmp_path / "y.arpa")}


def test_a_file_of_lmplz_gives_each_sentence_its_probability(tmp_path: Path) -> None:
    convert(LMPLZ / "order3.arpa", tmp_path / "model")
    loaded, found = load_checkpoint(tmp_path / "model"), read_by_hand(LMPLZ / "order3.arpa")
    assert loaded.tokenizer is not None
    lines = [*(LMPLZ / "corpus.txt").read_text().splitlines()[:20], "never seen 9x9"]
    known = {ngram[0] for ngram in found if len(ngram) == 1}
    for line in lines:
        words = [word if word in known else "<unk>" for word in line.split()]
        evaluated = evaluate(loaded.model, encode_corpus(corpus([line]), loaded.tokenizer))
        assert evaluated.tokens == len(words) + 1
        assert evaluated.loss * evaluated.tokens == pytest.approx(sentence_nats(found, words, 3), rel=1e-9)
    # And as it was: the same file out again, but for the digits.
    convert(tmp_path / "model", tmp_path / "again.arpa")
    again = read_by_hand(tmp_path / "again.arpa")
    assert again.keys() == found.keys()
    for ngram in found.keys() - {("<s>",)}:
        assert again[ngram] == pytest.approx(found[ngram], abs=1e-9), ngram


def bound_of_readout(result: CheckResult) -> float:
    assert result.own is not None
    bound, = {finding.bound for finding in result.own.findings if finding.law == "readout"}
    return bound


@pytest.mark.usefixtures("_near")
def test_the_laws_hold_to_the_digits_of_a_file_and_no_further(tmp_path: Path) -> None:
    text = (LMPLZ / "order3.arpa").read_text()
    convert(LMPLZ / "order3.arpa", tmp_path / "model")
    loaded = load_checkpoint(tmp_path / "model")
    # Contexts of two tokens: rows of 64 are long for them.
    of_a_file, counted_here = (check(each, length=64) for each in (loaded, dataclasses.replace(loaded, facts={})))
    assert of_a_file.holds
    assert [bound_of_readout(found) for found in (of_a_file, counted_here)] == pytest.approx([3.46e-6, 1e-8], rel=0.01)
    assert text.count("-0.96931326\tw0\t") == 1
    (tmp_path / "off.arpa").write_text(text.replace("-0.96931326\tw0\t", "-0.96831326\tw0\t"))
    convert(tmp_path / "off.arpa", tmp_path / "off")
    found = check(tmp_path / "off", length=64).own
    assert found is not None and {finding.law for finding in found.broken()} == {"readout"}


def test_a_file_of_ids_with_an_unknown_word_that_the_tokenizer_lacks(tmp_path: Path) -> None:
    (tmp_path / "ids.arpa").write_text(
        "\\data\\\nngram 1=5\nngram 2=2\n\n\\1-grams:\n-1\t<unk>\t0\n0\t<s>\t-0.3\n-0.5\t</s>\t0\n-0.6\t104\t-0.2\n"
        "-0.7\t105\t0\n\n\\2-grams:\n-0.1\t<s> 104\n-0.2\t104 105\n\n\\end\\\n")
    done = convert(tmp_path / "ids.arpa", tmp_path / "model", tokenizer="bytes")
    assert "the tokenizer has no id for <unk>, so the model has one more than the tokenizer" in done.notes
    loaded = load_checkpoint(tmp_path / "model")
    assert loaded.model.vocab_size == 258
    (row,) = score(loaded, ["hi"]).rows
    assert row.log_probs == pytest.approx([-0.1 * math.log(10), -0.2 * math.log(10)], rel=1e-12)
    convert(loaded, tmp_path / "out.arpa")
    assert {("<unk>",), ("h", "i"), ("<s>", "h")} < read_by_hand(tmp_path / "out.arpa").keys()


@pytest.mark.parametrize(("options", "message"), [
    ({"dtype": "float32"}, r"dtype: 'float32' says nothing of an ARPA file\. Leave it out\."),
    ({"with_code": True}, "with_code: True says nothing of an ARPA file"),
    ({"to": "hf"}, "to: the format 'hf', while the files' names say 'weft'"),
    ({"tokenizer": "bpe"}, "tokenizer: a tokenizer of kind 'bpe' is learned from text, and an ARPA file has none"),
    ({"out": "b.arpa"}, r"b\.arpa: both are ARPA files\. Name a folder to make a checkpoint in\.")])
def test_what_says_nothing_of_an_arpa_file_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        convert(**{"source": LMPLZ / "order3.arpa", "out": tmp_path / "model", **options})
    assert not list(tmp_path.iterdir())


def test_what_an_arpa_file_cannot_hold_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = parse_part(("model",), {"kind": "decoder", "vocab_size": 257, "d_model": 8,
                                     "blocks": [{"kind": "pre", "layers": ["lstm"]}]})
    decoder = save_checkpoint(tmp_path / "decoder", config.build(), ByteTokenizer())
    with pytest.raises(UnsupportedError, match="an ARPA file holds the back-off table of an n-gram model, and this is "
                                               "a model of kind 'decoder'"):
        convert(decoder, tmp_path / "x.arpa")
    odd = saved(tmp_path / "odd", WordTokenizer.train(TEXT))
    with pytest.raises(UnsupportedError, match="the vocabulary has '<s>' as an ordinary word"):
        convert(odd, tmp_path / "x.arpa")
    with pytest.raises(OccupiedError, match="there is a folder at this path, and a file is to be written"):
        (tmp_path / "y.arpa").mkdir()
        convert(odd, tmp_path / "y.arpa")
    with pytest.raises(InputError, match=r"to: no format is given\. Give one with --to, or name the file \.arpa"):
        convert(odd, tmp_path / "x")
    with pytest.raises(InputError, match=r"to: an ARPA model is a file\. Name it \.arpa"):
        convert(odd, tmp_path / "x", to="arpa")
    with pytest.raises(InputError, match="tokenizer: a tokenizer for a model that brings its own"):
        convert(odd, tmp_path / "x.arpa", tokenizer="bytes")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decoder", "odd", "y.arpa"]


def test_words_that_the_tokenizer_does_not_have_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"order3\.arpa, line \d+: the word '.*' is not in the given vocabulary"):
        convert(LMPLZ / "order3.arpa", tmp_path / "model", tokenizer="bytes")
    assert not list(tmp_path.iterdir())
