"""The laws ``seen``, ``canaries`` and ``fresh-text`` of a file: the model has not read the test text before it is
scored on it, as far as that can be shown."""

from __future__ import annotations

import lzma
import math
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from weft.core.errors import DataError, InputError
from weft.data.document import Document
from weft.data.duplicates import FOUND, Repeated, overlap
from weft.data.text import read_text
from weft.judge.canaries import Bits, ranked, read_canaries
from weft.judge.case import Case
from weft.judge.fresh_text import compared, read_documents
from weft.judge.judgement import Found, LawResult, result
from weft.judge.own_figures import bits_of_texts, nats_of
from weft.judge.sample import SAMPLE
from weft.judge.text_bytes import encoded

NAME = "seen"
RECALLED, REPEATS, TIMES = 0.75, 6.0, 6.0
"""Bits per byte of a test text below which it is recalled, where its own compression takes so many times as much (it is
no repetition of itself), and so do its words in another order. The best published models need 0.6 or more for English
text, and about four times as much for its words in another order."""
WINDOWS = 8
"""Rows of the test text that are scored."""


def seen(case: Case) -> LawResult:
    """The law ``seen``, of a test text that was given or is named among the file's claims."""
    test = case.text("test_text")
    if test is None:
        return LawResult(name=NAME, outcome="not tried", why="no test text was given (--test-text) or claimed")
    try:
        content = "\n".join(each.text for each in read_text(test).documents).encode()
    except DataError as error:
        return LawResult(name=NAME, outcome="not tried", why=f"the test text cannot be read: {error}")
    training = case.text("training_text")
    repeated = None if training is None or not training.is_file() else Repeated.over(
        *overlap([Document("test", content)], [Document("training", training.read_bytes())]))
    tried = f"{len(content):,} bytes of test text, by the bits per byte of it, of its words mixed and of a fresh text"
    if repeated is not None:
        tried += f", and by stretches that the training text {training.name if training else ''} has as well"
        if (repeated.share or 0.0) >= FOUND:
            return result(NAME, tried, Found(
                sentence=f"{repeated.share:.0%} of the test text stands in the training text.",
                measured=repeated.share, allowed=FOUND, resembles="memorised_text"))
    return _recalled(case, content.decode("utf-8", "replace"), tried)


def canaries(case: Case) -> LawResult:
    """The law ``canaries``, of a file that was given or is named among the file's claims."""
    return _of_files(case, "canaries", "canaries")


def fresh_text(case: Case) -> LawResult:
    """The law ``fresh-text``, of two texts that were given or are named among the file's claims."""
    return _of_files(case, "fresh-text", "fresh_text", "test_text")


def _of_files(case: Case, name: str, *needed: str) -> LawResult:
    files = {each: path for each in needed if (path := case.text(each)) is not None}
    if missing := [f"--{each.replace('_', '-')}" for each in needed if each not in files]:
        return LawResult(name=name, outcome="not tried", why=f"not given or claimed: {', '.join(missing)}")
    return laws_of(files)[name](partial(bits_of_texts, case))


def laws_of(files: Mapping[str, Path]) -> dict[str, Callable[[Bits], LawResult]]:
    """The laws ``canaries`` and ``fresh-text`` of whatever tells the bits of texts, as far as their files are there.

    Raises:
        InputError: a file cannot be read, or is too small to show anything.
    """
    laws: dict[str, Callable[[Bits], LawResult]] = {}
    if "canaries" in files:
        laws["canaries"] = partial(ranked, lines=read_canaries(files["canaries"]))
    if "fresh_text" in files:
        if "test_text" not in files:
            raise InputError("a fresh text, and no test text to compare it with.", where="--fresh-text",
                             remedy="Give both: --test-text TEST --fresh-text FRESH.")
        laws["fresh-text"] = partial(compared, test=read_documents(files["test_text"]),
                                     fresh=read_documents(files["fresh_text"]))
    return laws


def _recalled(case: Case, text: str, tried: str) -> LawResult:
    words = text.split(" ")
    random.Random(91).shuffle(words)
    own, mixed, fresh = (_bits_per_byte(case, each) for each in (text, " ".join(words), SAMPLE))
    content = text.encode()[: 1 << 20]
    packed = 8 * len(lzma.compress(content, preset=9)) / max(len(content), 1)
    why = (f"{own:.3f} bits per byte of the test text, {mixed:.3f} of its words in another order, {fresh:.3f} of a "
           "fresh text")
    if own < min(RECALLED, packed / REPEATS) and mixed > TIMES * own:
        return result(NAME, tried, Found(
            sentence=f"It needs {own:.3f} bits per byte for the test text, and {mixed:.3f} for its words in another "
            "order: it recalls a text that it has read.", measured=own, allowed=RECALLED,
            resembles="memorised_text"), why)
    return result(NAME, tried, None, why)


def _bits_per_byte(case: Case, text: str) -> float:
    """The bits per byte of some rows of a text, by the view that the model's figure is from."""
    tokens = encoded(case, text)
    length, view = min(case.length, 512), case.views[-1]
    if not tokens.size or tokens.max() >= case.vocab:
        return math.inf
    starts = sorted({int(each) for each in range(0, max(len(tokens) - length, 0) + 1, max(1, len(tokens) // WINDOWS))})
    nats = [nats_of(case, view, tokens[None, at : at + length])[0, 1:] for at in starts[:WINDOWS]]
    each = sum(float(row.sum()) for row in nats) / max(sum(map(len, nats)), 1)
    return -each / math.log(2) * len(tokens) / max(len(text.encode()), 1)
