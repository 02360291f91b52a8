"""How the ids of a vocabulary are spelled as words of an ARPA file, and read back.

The words of a words tokenizer are themselves. Any other id is spelled as its vocabulary names it (``Ġthe``, ``▁the``,
``##ing``), or as it decodes where it has no name, with ``%XX`` for the UTF-8 bytes of white space, of ``%`` and of a
leading ``<`` that would make it one of ARPA's own words; where that is empty or not unique, ``%#12`` follows, the id.
Without a tokenizer, ids are decimal numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from weft.core.errors import UnsupportedError
from weft.tokenizers import Tokenizer, WordTokenizer
from weft.tokenizers.base import pieces_of

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
RESERVED = (START, END, UNKNOWN)


class Roles(NamedTuple):
    """Ids with a fixed spelling in ARPA files; None: no id has the role.

    Attributes:
        end: the end of a document, ``</s>``.
        unknown: the unknown word, ``<unk>``.
    """

    end: int | None
    unknown: int | None


def opening_of(tokenizer: Tokenizer) -> int | None:
    """The token that stands before a document: the start symbol, or the end of the document before."""
    return tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id


def roles_of(tokenizer: Tokenizer | None, end: int | None, size: int) -> Roles:
    """The roles of a model's ids.

    Args:
        tokenizer: the model's.
        end: the token that its contexts read as the start symbol, see `NgramConfig`; it closes documents too, unless
            the tokenizer has another for that.
        size: ids of the model. The first one that the tokenizer lacks is the unknown word, if the tokenizer has none.
    """
    if tokenizer is None:
        return Roles(end, None)
    closing = end if tokenizer.eos_id in (None, tokenizer.bos_id) else tokenizer.eos_id
    named = tokenizer.unknown_id if isinstance(tokenizer, WordTokenizer) else pieces_of(tokenizer).get(UNKNOWN)
    beyond = tokenizer.vocab_size if size > tokenizer.vocab_size else None
    return Roles(closing, beyond if named is None else named)


def words_of(tokenizer: Tokenizer | None, roles: Roles, size: int) -> list[str]:
    """The word of each id, all distinct, none with white space.

    Raises:
        UnsupportedError: a words tokenizer has one of ARPA's own words as an ordinary one.
    """
    if tokenizer is None:
        words = [str(place) for place in range(size)]
    elif isinstance(tokenizer, WordTokenizer):
        words = [*_own_words(tokenizer), *(f"%#{place}" for place in range(tokenizer.vocab_size, size))]
    else:
        words = _spelled(tokenizer, size)
    for place, word in ((roles.end, END), (roles.unknown, UNKNOWN)):
        if place is not None:
            words[place] = word
    return words


def _own_words(tokenizer: WordTokenizer) -> list[str]:
    taken = sorted({*RESERVED, *tokenizer.special_tokens} & set(tokenizer.words))
    if taken:
        raise UnsupportedError(f"the vocabulary has {taken[0]!r} as an ordinary word, and in an ARPA file that is a "
                               "symbol.", where="tokenizer", remedy="Train the model on a text without that word.")
    return [*tokenizer.special_tokens, UNKNOWN, *tokenizer.words]


def _spelled(tokenizer: Tokenizer, size: int) -> list[str]:
    names = {place: name for name, place in pieces_of(tokenizer).items()}
    known = tokenizer.vocab_size
    words = [_escaped(names[place] if place in names else tokenizer.decode([place], specials=True))
             if place < known else "" for place in range(size)]
    times = Counter(words)
    return [f"{word}%#{place}" if not word or times[word] > 1 else word for place, word in enumerate(words)]


def _escaped(name: str) -> str:
    if name in RESERVED:
        return _percent(name[0]) + name[1:]
    return "".join(_percent(letter) if letter == "%" or letter.isspace() or not letter.isprintable() else letter
                   for letter in name)


def _percent(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode())


def in_ids(words: Collection[str], spelled: Collection[str]) -> bool:
    """Whether a file's words are ids as numbers. Words that could also be the vocabulary's spellings count as those."""
    own = set(words) - {*RESERVED, UNKNOWN.upper()}
    return not own <= set(spelled) and all(word.isascii() and word.isdigit() for word in own)
