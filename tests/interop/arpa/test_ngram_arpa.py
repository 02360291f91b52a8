"""ARPA files: there and back, the forms that others write, and where a broken file breaks."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from weft.core.errors import DataError, InputError
from weft.interop.arpa.reader import read_arpa
from weft.interop.arpa.writer import write_arpa
from weft.ngram import (
    NgramTable,
    add_k,
    count_ngrams,
    katz,
    maximum_likelihood,
    modified_kneser_ney,
)

WORDS = ("the", "Ġcow", "é", "eats", "</s>")


def table(estimate: str = "kneser-ney", order: int = 3, bos: int | None = None) -> NgramTable:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 5, size=80)
    counts = count_ngrams(tokens, rng.random(80) < 0.2, order=order, vocab_size=5, bos=bos)
    made = {"ml": maximum_likelihood, "katz": katz, "kneser-ney": modified_kneser_ney}
    return add_k(counts, 0.5) if estimate == "add-k" else made[estimate](counts)


def assert_equal(found: NgramTable, expected: NgramTable) -> None:
    assert (found.order, found.vocab_size, found.bos) == (expected.order, expected.vocab_size, expected.bos)
    for mine, theirs in zip(found.levels, expected.levels, strict=True):
        np.testing.assert_array_equal(mine.keys, theirs.keys)
        # Nats to log10, 17 digits, and back: two float64 roundings.
        np.testing.assert_allclose(mine.log_prob, theirs.log_prob, rtol=5e-16)
        np.testing.assert_allclose(mine.backoff, theirs.backoff, rtol=5e-16)


@pytest.mark.parametrize("estimate", ["ml", "add-k", "katz", "kneser-ney"])
@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("ending", ["arpa", "arpa.gz"])
def test_there_and_back(tmp_path: Path, estimate: str, order: int, ending: str) -> None:
    path, written = tmp_path / f"model.{ending}", table(estimate, order)
    write_arpa(written, path, WORDS)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == ending.endswith("gz")
    for vocabulary in (None, WORDS):
        model = read_arpa(path, vocabulary)
        assert model.vocabulary == WORDS
        assert_equal(model.table, written)


def test_there_and_back_with_a_start_symbol_inside_the_vocabulary(tmp_path: Path) -> None:
    written, words = table(bos=0), ("<s>", *WORDS[1:])
    write_arpa(written, tmp_path / "model.arpa", words)
    model = read_arpa(tmp_path / "model.arpa", words)
    assert model.vocabulary == words
    assert_equal(model.table, written)


HEAD = "\\data\\\nngram 1=4\nngram 2=2\n\n"
UNIGRAMS = "\\1-grams:\n-99\t<s>\t-0.30103\n-0.30103\ta\t-0.1\n-0.60206\tb\n-0.60206\t</s>\n\n"
GOOD = HEAD + UNIGRAMS + "\\2-grams:\n-0.1\t<s> a\n-0.2\ta b\n\n\\end\\\n"


def read(tmp_path: Path, text: str | bytes, vocabulary: tuple[str, ...] | None = None) -> NgramTable:
    path = tmp_path / "model.arpa"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_arpa(path, vocabulary).table


def test_the_written_text_itself(tmp_path: Path) -> None:
    counts = count_ngrams(np.array([0, 0, 0, 1]), None, order=1, vocab_size=2)
    write_arpa(maximum_likelihood(counts), tmp_path / "model.arpa", ("a", "b"))
    lines = (tmp_path / "model.arpa").read_text().splitlines()
    assert lines[:4] == ["\\data\\", "ngram 1=3", "", "\\1-grams:"]
    assert [line.split("\t")[1:] for line in lines[4:7]] == [["a"], ["b"], ["<s>"]]
    numbers = [float(line.split("\t")[0]) for line in lines[4:7]]
    np.testing.assert_allclose(numbers, [np.log10(0.75), np.log10(0.25), -99.0], rtol=5e-16)
    assert lines[7:] == ["", "\\end\\"]


def test_values_by_hand(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    prob = found.log_prob(np.array([[3], [3], [0], [0], [1]]), np.array([0, 1, 1, 2, 0])) / np.log(10)
    expected = [-0.1, -0.30103 - 0.60206, -0.2, -0.1 - 0.60206, -0.30103]
    np.testing.assert_allclose(prob, expected, rtol=1e-14)


@pytest.mark.parametrize(
    "text",
    [
        "made by hand\n\n" + GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\t", " "),
        GOOD.replace("ngram 1=4", "ngram  1 = 4"),
        GOOD.replace("-99", "0"),
        GOOD.replace("-99", "-inf"),
        GOOD.replace("\tb\n", "\tb\t0\n"),
        GOOD.replace("-0.1\t<s> a\n-0.2\ta b\n", "-0.2\ta b\n-0.1\t<s> a\n"),
        GOOD.replace("\n\n", "\n"),
        GOOD + "whatever follows\n",
    ],
)
def test_usual_forms(tmp_path: Path, text: str) -> None:
    assert_equal(read(tmp_path, text), read(tmp_path, GOOD))


def test_a_pruned_file_lacks_a_context(tmp_path: Path) -> None:
    trigram = "ngram 3=1\n\n\\1-grams:"
    text = GOOD.replace("\n\\1-grams:", trigram).replace("\\end\\", "\\3-grams:\n-0.05 b a b\n\n\\end\\")
    found, without = read(tmp_path, text), read(tmp_path, GOOD)
    contexts = np.array([[a, b] for a in range(4) for b in range(4)])
    distributions = found.log_distribution(contexts)
    changed = np.argwhere(~np.isclose(distributions, without.log_distribution(contexts), rtol=1e-14, atol=0))
    assert changed.tolist() == [[4, 1]]
    np.testing.assert_allclose(distributions[4, 1], -0.05 * np.log(10), rtol=1e-14)


def test_words_that_the_file_lacks_have_no_probability(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD, ("new", "</s>", "b", "a"))
    expected = [-np.inf, -0.60206, -0.60206, -0.30103]
    np.testing.assert_allclose(found.log_distribution(np.empty((1, 0), int))[0] / np.log(10), expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (GOOD, "", r"line 0: the file ends where \\data\\ should follow"),
        (HEAD, "", r"the file ends where \\data\\ should follow"),
        ("ngram 2=2", "ngram 3=2", "line 3: the count of 2-grams should stand here; got 'ngram 3=2'"),
        ("ngram 2=2", "ngram two", r"line 3: 'ngram N=COUNT' or \\1-grams: should stand here; got 'ngram two'"),
        ("ngram 2=2", "ngram 2=3", r"line 15: the header gives 3 2-grams, but the section ends after 2"),
        ("ngram 2=2", "ngram 2=1", r"line 13: by the header's counts \\end\\ should stand here; got '-0.2\\ta b'"),
        ("ngram 1=4", "ngram 1=5", r"line 11: the header gives 5 1-grams, but the section ends after 4"),
        ("\\end\\\n", "", r"line 14: the file ends where \\end\\ should follow"),
        ("-0.2\ta b\n\n\\end\\\n", "", r"line 12: the file ends where the next of 2 2-grams should follow"),
        ("-0.2\ta b", "-0.x\ta b", "line 13: a number should stand here; got '-0.x'"),
        ("\ta\t-0.1", "\ta\tnone", "line 7: a number should stand here; got 'none'"),
        ("-0.2\ta b", "nan\ta b", "line 13: log10 of a probability must be at most 0; got nan"),
        ("-0.2\ta b", "0.2\ta b", "line 13: log10 of a probability must be at most 0; got 0.2"),
        ("\ta\t-0.1", "\ta\tinf", "line 7: a back-off weight must be finite; got inf"),
        ("-0.2\ta b", "-0.2\ta", r"line 13: a 2-gram is log10 p, 2 word\(s\); got '-0.2\\ta'"),
        ("-0.2\ta b", "-0.2\ta b\t-1", r"line 13: a 2-gram is log10 p, 2 word\(s\); got '-0.2\\ta b\\t-1'"),
        ("\tb\n", "\tb 0 0\n", r"line 8: a 1-gram is log10 p, 1 word\(s\) and perhaps a back-off weight; got"),
        ("-0.2\ta b", "-0.2\ta z", "line 13: the word 'z' is not among the unigrams"),
        ("-0.2\ta b", "-0.2\t<s> a", "line 13: the n-gram of line 12 is repeated here"),
        ("</s>", "a", "line 9: the n-gram of line 7 is repeated here"),
    ],
)
def test_broken_files_say_where(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(DataError, match=message):
        read(tmp_path, GOOD.replace(old, new, 1))


def test_files_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 7: the text is not UTF-8\. Convert"):
        read(tmp_path, GOOD.encode().replace(b"\ta\t", b"\t\xff\t"))
    with pytest.raises(DataError, match=r"none.arpa, line 0: the file cannot be read \(.*No such file"):
        read_arpa(tmp_path / "none.arpa")
    (tmp_path / "cut.arpa.gz").write_bytes(gzip.compress(GOOD.encode())[:-12])
    spoilt = bytearray(gzip.compress(GOOD.encode()))
    spoilt[12:30] = b"\xff" * 18
    (tmp_path / "spoilt.arpa.gz").write_bytes(spoilt)
    (tmp_path / "not.arpa.gz").write_text(GOOD)
    for name in ("cut.arpa.gz", "spoilt.arpa.gz", "not.arpa.gz"):
        with pytest.raises(
            DataError, match=rf"{name}, line \d+: the file cannot be read \((Compressed|Error -3|Not a gzip)"
        ):
            read_arpa(tmp_path / name)


def test_vocabularies_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 8: the word 'b' is not in the given vocabulary"):
        read(tmp_path, GOOD, ("a",))
    path = tmp_path / "out.arpa"
    for words, message in [
        (("a", "b"), "vocabulary must have 5 words; got 2"),
        (("a", "b", "c", "d", ""), r"vocabulary\[4\]: words in ARPA files cannot be empty or hold white space; got ''"),
        (("a", "b", "c d", "d", "e"), r"vocabulary\[2\]: .*got 'c d'. Write such words in an escaped form"),
        (("a", "b", "c", "a", "e"), "words must be distinct; 'a' occurs 2 times"),
    ]:
        with pytest.raises(InputError, match=message):
            write_arpa(table(), path, words)
    assert not path.exists()
