"""The nats of a code for what the tokens of a text do not say of it.

A model gives a probability to tokens, and bits per byte are of text. Where a tokenizer gives several texts the same
tokens (unknown words, small letters for capitals, white space, normalisation), the tokens alone would be too cheap: all
unknown words at the price of one. Such text is paid for, so that the probabilities of all texts sum to 1 at most, as
Cotterell et al. 2018 (section 2) and Mielke 2019 ("Can you compare perplexity across different segmentations?") ask.

The code describes a text to a reader who knows its tokens:

1. Whether decoding the tokens gives the text back: yes has the probability 1 - 2^-10 and ends the code.
2. Each token's text is compared with what its id is taken for (`Tokenizer.spellings`), in two steps: the white space
   before it (as expected, none, a space, a line end, other), and the rest (as expected, or other). Which of the kinds
   comes at each token is coded by the Dirichlet-multinomial distribution over the text's tokens, with pseudo-counts of
   8 for "as expected" and 1/2 for every other.
3. What is "other" is spelled in bytes and an end, each of the 257 equally probable: 8.006 bits.

It is a code, so losses cannot make a text cheaper than it is; and since it learns nothing about letters, lost words
cost more than any trained model of bytes would ask. Where every text is restored by how the tokenizer is made, nothing
is paid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.tokenizers.streaming import parted

if TYPE_CHECKING:
    from weft.tokenizers.base import Encoded, Tokenizer

NOT_RESTORED = 2.0**-10
"""The probability that a text is not what its tokens decode to."""

STRETCH_NATS = 32 * math.log(2)
"""Paid for each stretch of a long text after the first (see `weft.tokenizers.split_points`): the reader is told
where it begins."""

SYMBOL_NATS = math.log(257)
EXPECTED, SPELLED = 0, 4
AS_EXPECTED, ANY_OTHER = 8.0, 0.5
"""Pseudo-counts."""

SEPARATORS = {b"": 1, b" ": 2, b"\n": 3}


def lost_nats(tokenizer: Tokenizer, text: str, encoded: Encoded) -> NDArray[np.float32] | None:
    """The nats of the code, by the token whose text they are for; None where the tokenizer keeps every text.

    Args:
        tokenizer: that has encoded the text.
        encoded: its tokens, at least one, and the bytes of each.
    """
    if tokenizer.keeps_text:
        return None
    paid = np.zeros(len(encoded.ids))
    if tokenizer.decode(encoded.ids) == text:
        paid[0] = -math.log1p(-NOT_RESTORED)
        return paid.astype(np.float32)
    spellings, ends = tokenizer.spelled(), np.cumsum(encoded.byte_lengths, dtype=np.int64).tolist()
    content, separators, rests, first = text.encode(), list[int](), list[int](), 0
    for place, (token, last) in enumerate(zip(encoded.ids.tolist(), ends, strict=True)):
        (before, expected), (separator, rest) = spellings[token], parted(content[first:last])
        before = b"" if first == 0 else before  # decoding drops the space before the first word
        kind = EXPECTED if separator == before else SEPARATORS.get(separator, SPELLED)
        separators.append(kind)
        rests.append(int(rest != expected))
        if kind == SPELLED:
            paid[place] += _spelled(separator)
        if rests[-1]:
            paid[place] += _spelled(rest)
        first = last
    paid += _nats_of_kinds(separators, SPELLED + 1) + _nats_of_kinds(rests, 2)
    paid[0] -= math.log(NOT_RESTORED)
    return paid.astype(np.float32)


def untold_nats(text: str) -> float:
    """The nats of a text that has no tokens."""
    return _spelled(text.encode()) - math.log(NOT_RESTORED) if text else 0.0


def _spelled(content: bytes) -> float:
    return (len(content) + 1) * SYMBOL_NATS


def _nats_of_kinds(kinds: Sequence[int], count: int) -> NDArray[np.float64]:
    """Minus the logarithm of the Dirichlet-multinomial probability of a sequence, shared out by how rare each kind is.

    Args:
        kinds: of each token; 0 is the expected one.
    """
    prior = np.full(count, ANY_OTHER)
    prior[EXPECTED] = AS_EXPECTED
    found = np.bincount(np.array(kinds), minlength=count)
    total = math.lgamma(len(kinds) + prior.sum()) - math.lgamma(prior.sum()) - sum(
        math.lgamma(each + before) - math.lgamma(before)
        for each, before in zip(found.tolist(), prior.tolist(), strict=True))
    shares = -np.log((found + prior) / (len(kinds) + prior.sum()))[np.array(kinds)]
    paid: NDArray[np.float64] = shares * (total / shares.sum())
    return paid
