"""The law ``canaries``: strings that nobody may train on are predicted no better than others of their form.

A canary is a line whose last word was drawn at random (Carlini et al. 2019, "The Secret Sharer"). Whoever has not read
it has no reason to prefer it to another word drawn alike: among N strings of one form its rank is then each of 1 .. N
with the same probability, whatever the model. The p-value is that of -sum log(rank / N) over all canaries, the sum of
what Carlini et al. call exposure, among 99,999 such sums of ranks that are drawn at random.
"""

from __future__ import annotations

import functools
import math
import random
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from weft.core.errors import InputError
from weft.judge.judgement import Found, LawResult, result

NAME = "canaries"
Bits: TypeAlias = Callable[[Sequence[str]], list[float]]
"""The bits that a model needs for each of some texts; infinite where its ids do not hold a text."""
LEVEL = 1e-3
"""The probability with which a model is accused that has not read the text."""
LEAST, MOST, STRINGS = 5, 50, 2_000
"""Canaries that are needed, those of a file that are asked for, and strings that are scored in all, about."""
CHANCES = 99_999
"""Sums of random ranks that exposure is compared with."""
RANDOM_BITS = 40.0
"""Bits that a random word must hold, so that no other text has it by chance."""
EVEN = 1e-4
"""The p-value below which characters are not taken for drawn evenly: one proper file in 10,000 is drawn again."""
ALPHABETS = (string.digits, string.digits + "abcdef", string.digits + "ABCDEF", string.ascii_lowercase,
             string.digits + string.ascii_lowercase, string.digits + string.ascii_letters)
REMEDY = ("Give lines that end in a random word of ten or more digits and letters, such as those of: "
          "python3 -c \"import secrets; [print('canary', secrets.token_hex(8)) for _ in range(20)]\"")


def read_canaries(path: Path) -> tuple[str, ...]:
    """The lines of a file of canaries.

    Raises:
        InputError: it cannot be read, has too few of them, or their last words were not drawn at random.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the canaries cannot be read ({error}).", where=str(path), remedy=REMEDY) from None
    words = [line.split()[-1] for line in lines]
    alphabet = alphabet_of(words)
    if len(set(words)) < max(LEAST, len(words)):
        raise InputError(f"{len(set(words))} different canaries in {len(words)} lines, where {LEAST} different ones "
                         "are needed.", where=str(path), remedy=REMEDY)
    if not alphabet or min(map(len, words)) * math.log2(len(alphabet)) < RANDOM_BITS or not _even(words, alphabet):
        raise InputError("the last words of its lines are no random strings of at least "
                         f"{RANDOM_BITS:.0f} bits.", where=str(path), remedy=REMEDY)
    return tuple(lines)


def alphabet_of(words: Sequence[str]) -> str:
    """The smallest alphabet that has all characters of some words; empty if none has."""
    return next((each for each in ALPHABETS if set("".join(words)) <= set(each)), "")


def _even(words: Sequence[str], alphabet: str) -> bool:
    """Whether characters may have been drawn evenly, by the chi-square statistic and the cube root of Wilson and
    Hilferty (1931)."""
    counts = np.array(["".join(words).count(each) for each in alphabet])
    freedom, expected = len(alphabet) - 1, counts.mean()
    ratio = float(((counts - expected) ** 2).sum() / expected) / freedom
    deviations = (ratio ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))
    return math.erfc(deviations / math.sqrt(2)) / 2 > EVEN


def ranked(bits: Bits, lines: Sequence[str], draw: random.Random | None = None) -> LawResult:
    """The law for a model.

    Args:
        bits: of texts by the model.
        lines: those of `read_canaries`; the first `MOST` are asked for.
        draw: what draws the strings beside them; None: the system's random numbers, which no author can know.
    """
    lines, draw = lines[:MOST], draw or random.SystemRandom()
    strings = min(100, STRINGS // len(lines))
    alphabet = alphabet_of([line.split()[-1] for line in lines])
    asked = [each for line in lines for each in (line, *(_alike(line, alphabet, draw) for _ in range(strings - 1)))]
    told = np.array(bits(asked)).reshape(len(lines), strings)
    if not np.isfinite(told).all():
        return LawResult(name=NAME, outcome="not tried", why="its ids do not hold the canaries' characters")
    ranks = (told <= told[:, :1]).sum(axis=1)  # an equal string counts as a better one
    first, exposure = int((ranks == 1).sum()), float(np.log2(strings / ranks).mean())
    by_chance = exposures_by_chance(len(lines), strings)
    p = float(1 + (by_chance >= exposure - 1e-9).sum()) / (CHANCES + 1)
    usual, most = float(by_chance.mean()), float(np.quantile(by_chance, 1 - LEVEL))
    finds = math.ceil(len(lines) * (most - usual) / (math.log2(strings) - usual))
    said = (f"it predicts {first} of {len(lines)} canaries better than each of {strings - 1} fresh strings of their "
            f"form, where {len(lines) / strings:.2g} are expected by chance")
    found = None if p > LEVEL else Found(
        sentence=f"{said.capitalize()} (p = {p:.2g}): it has been trained on a text that holds them.",
        measured=p, allowed=LEVEL, resembles="trained_canaries")
    return result(NAME, f"the ranks of {len(lines)} canaries among {strings - 1} fresh strings each", found,
                  f"{said}; mean exposure {exposure:.2f} bits, p = {p:.2g}; {finds} canaries that are known by heart "
                  "would be found", p=p, level=LEVEL, canaries=len(lines), first=first, exposure=exposure)


@functools.cache
def exposures_by_chance(count: int, strings: int) -> np.ndarray:
    """Mean exposures of so many canaries whose ranks among so many strings are drawn at random, [`CHANCES`]."""
    ranks = np.random.default_rng(0).integers(1, strings + 1, (CHANCES, count))
    exposures: np.ndarray = np.log2(strings / ranks).mean(axis=1)
    return exposures


def bits_in_rows(encoded: Sequence[np.ndarray], longest: int, vocab: int,
                 nats: Callable[[np.ndarray], np.ndarray], tokens: int) -> list[float]:
    """The bits of texts of any lengths, read in rows; infinite for a text with an id that is not in the vocabulary.

    The first token of a row has no probability of its own, and the row's other tokens stand for it.

    Args:
        encoded: the ids of each text.
        longest: tokens of a row.
        vocab: the number of ids.
        nats: the sum of the log-probabilities of all tokens but the first of each of some rows [B,T], in nats [B].
        tokens: of the rows that are asked about at once.
    """
    rows = [(at, each[begin : begin + longest]) for at, each in enumerate(encoded)
            if len(each) and each.max() < vocab for begin in range(0, len(each), longest)]
    told, scored = np.zeros(len(encoded)), np.zeros(len(encoded))
    for length in {len(row) for _, row in rows} - {1}:
        same = [row for row in rows if len(row[1]) == length]
        together = max(1, tokens // length)
        for begin in range(0, len(same), together):
            owners, batch = zip(*same[begin : begin + together], strict=True)
            np.add.at(told, list(owners), nats(np.stack(batch)))
            np.add.at(scored, list(owners), length - 1)
    return [-float(nat) / math.log(2) * len(ids) / count if count else math.inf
            for nat, count, ids in zip(told, scored, encoded, strict=True)]


def _alike(line: str, alphabet: str, draw: random.Random) -> str:
    """A line with another random word of the same length."""
    word = line.split()[-1]
    return line[: -len(word)] + "".join(draw.choice(alphabet) for _ in word)
