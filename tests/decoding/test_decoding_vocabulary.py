"""Text from a model whose vocabulary is not quite its tokenizer's, and text that continues a prompt."""

from __future__ import annotations

import pytest

from decoding.small_models import Bigram
from weft.core.errors import TokenizerError
from weft.data import embedded_corpus
from weft.decoding import Row, Sampling, generate
from weft.tokenizers import ByteTokenizer, UnigramTokenizer

ROUNDED_UP = 264
"""Ids of a model for the 257 of the bytes."""


def model(size: int, favourite: int, second: int) -> Bigram:
    weights = [1e-6] * size
    weights[favourite], weights[second] = 0.9, 0.1
    return Bigram([weights] * size)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(top_k=1), Sampling(repetition_penalty=1.1)])
def test_ids_that_the_tokenizer_lacks_are_never_chosen(sampling: Sampling) -> None:
    found = generate(model(ROUNDED_UP, 260, ord("a")), [Row((263, 1))], max_new_tokens=20, sampling=sampling,
                     tokenizer=ByteTokenizer(), log_probs=True)
    assert max(found.rows[0].tokens) < 257
    assert (found.rows[0].text or "").startswith("aaa")
    free = generate(model(ROUNDED_UP, 260, ord("a")), [Row((263, 1))], max_new_tokens=2)
    assert free.rows[0].tokens == (260, 260)
    with pytest.raises(TokenizerError, match="id 260 at position 0 is outside the vocabulary of 257 ids"):
        ByteTokenizer().decode(free.rows[0].tokens)


def test_a_continuation_keeps_the_space_that_parts_it_from_its_prompt() -> None:
    tokenizer = UnigramTokenizer.train(embedded_corpus(max_bytes=20_000).texts(), 400)
    word = tokenizer.encode("self")
    assert tokenizer.decode(word[:1]) == tokenizer.decode([*word, word[0]])[len("self ") :]
    found = generate(model(400, word[0], 5), [Row(tuple(word)), Row((1,))], max_new_tokens=1, tokenizer=tokenizer,
                     sampling=Sampling(temperature=0))
    assert [row.text for row in found.rows] == [" " + tokenizer.decode(word[:1]), tokenizer.decode(word[:1])]
