"""From the sections of an ARPA file to a table in which every n-gram's context is listed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from weft.core.errors import DataError
from weft.ngram.table import NgramTable, TableLevel, chain, spell

MENDING = "Write the file again; it may have been cut off or edited."


class NgramSection(NamedTuple):
    """The n-grams of one length in the order of the file, in nats."""

    words: Int[np.ndarray, "G k"]
    log_prob: Float[np.ndarray, "G"]
    backoff: Float[np.ndarray, "G"]
    lines: Int[np.ndarray, "G"]


def build_table(sections: list[NgramSection], vocab_size: int, bos: int, path: str) -> NgramTable:
    """Sort the sections into a table that also lists the context of every n-gram."""
    base, order = vocab_size + 1, len(sections)
    prefixes = [section.words[:, 0] for section in sections]
    levels = [_unigram_level(sections[0], base, bos, order, path)]
    for length in range(2, order + 1):
        needed = [p * base + s.words[:, length - 1] for p, s in zip(prefixes[1:], sections[length - 1 :], strict=True)]
        keys = np.unique(np.concatenate(needed))
        levels.append(_level(sections[length - 1], needed[0], keys, (vocab_size, bos), levels, length == order, path))
        prefixes = [np.searchsorted(keys, each) for each in needed]
    return NgramTable(order, vocab_size, bos, tuple(levels))


def _place(section: NgramSection, places: Int[np.ndarray, "G"], size: int, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (NaN where the file has none) and back-off weights at their places."""
    by_place = np.argsort(places, kind="stable")
    twice = np.flatnonzero(np.diff(places[by_place]) == 0)
    if len(twice):
        first, again = section.lines[by_place[twice[0]]], section.lines[by_place[twice[0] + 1]]
        raise DataError(f"the n-gram of line {first} is repeated here.", where=f"{path}, line {again}", remedy=MENDING)
    log_prob, backoff = np.full(size, np.nan), np.zeros(size)
    log_prob[places], backoff[places] = section.log_prob, section.backoff
    return log_prob, backoff


def _unigram_level(section: NgramSection, base: int, bos: int, order: int, path: str) -> TableLevel:
    log_prob, backoff = _place(section, section.words[:, 0], base, path)
    log_prob[np.isnan(log_prob)] = -np.inf
    log_prob[bos] = -np.inf
    return TableLevel(np.arange(base), log_prob, np.empty(0) if order == 1 else backoff)


def _level(
    section: NgramSection,
    listed: Int[np.ndarray, "G"],
    keys: Int[np.ndarray, "K"],
    symbols: tuple[int, int],
    below: list[TableLevel],
    last: bool,
    path: str,
) -> TableLevel:
    vocab_size, bos = symbols
    base = vocab_size + 1
    log_prob, backoff = _place(section, np.searchsorted(keys, listed), len(keys), path)
    missing = np.flatnonzero(np.isnan(log_prob))
    if len(missing):
        contexts = spell(below, keys[missing] // base, len(below), base)
        shorter = NgramTable(len(below), vocab_size, bos, tuple(below))
        log_prob[missing] = _backed_off(shorter, contexts, keys[missing] % base)
    return TableLevel(keys, log_prob, np.empty(0) if last else backoff)


def _backed_off(
    shorter: NgramTable, contexts: Int[np.ndarray, "M k"], words: Int[np.ndarray, "M"]
) -> Float[np.ndarray, "M"]:
    """p of n-grams that are not listed after their context, from the orders below."""
    ids = chain(shorter.levels, contexts, shorter.base)
    safe = np.where(words < shorter.vocab_size, words, 0)
    prob = shorter.levels[-1].backoff[ids] + shorter.log_prob(contexts, safe)
    return np.where(words < shorter.vocab_size, prob, -np.inf)
