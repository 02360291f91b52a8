"""N-gram models to and from ARPA files, the exchange format of SRILM, KenLM and others, verified by their
probabilities.

How the ids of a vocabulary are spelled as words of an ARPA file, and read back.

The words of a words tokenizer are themselves. Any other id is spelled as its vocabulary names it (``Ġthe``, ``▁the``,
``##ing``), or as it decodes where it has no name, with ``%XX`` for the UTF-8 bytes of white space, of ``%`` and of a
leading ``<`` that would make it one of ARPA's own words; where that is empty or not unique, ``%#12`` follows, the id.
Without a tokenizer, ids are decimal numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64
from safetensors import SafetensorError

from weft.checkpoints import load_checkpoint
from weft.checkpoints.load import Loaded
from weft.checkpoints.save import fill_checkpoint
from weft.core.errors import FailedError, UnsupportedError
from weft.disk.atomic import made, new_file, not_written, replacing
from weft.disk.manifest import sha256_of
from weft.disk.ownership import by_manifest, require_free
from weft.interop.arpa.reader import read_arpa, read_words
from weft.interop.arpa.writer import write_arpa
from weft.interop.convert import Converted
from weft.models.ngram import NgramConfig, NgramModel
from weft.ngram import NgramTable
from weft.ngram.table import spell
from weft.tokenizers import Tokenizer, WordTokenizer
from weft.tokenizers.base import pieces_of

SUFFIXES = (".arpa", ".arpa.gz")
ASKED, CELLS, SEED = 256, 1 << 22, 0
"""Contexts in which all probabilities of both sides are compared, and the most probabilities to compute."""
BOUND = 1e-9
"""Largest difference of log-probabilities, in nats, that writing and reading 17 digits explains; a wrong word or weight
changes them by far more."""
DIGITS = 5e-7 * math.log(10)
"""Rounding error in nats of a number in an ARPA file of other programs: half a unit of the seventh
significant digit of a log10 below 10."""


def is_arpa(path: str | Path) -> bool:
    """Whether a path names an ARPA file."""
    return str(path).endswith(SUFFIXES)


def to_arpa(loaded: Loaded, out: Path) -> Converted:
    """Write an n-gram model as an ARPA file, which is put in place only after it has been read back and compared.

    Raises:
        UnsupportedError: the model is not an n-gram model, or an ARPA file cannot hold its words.
        OccupiedError: there is something at ``out``.
        FailedError: the file does not give the model's probabilities, or there is no room.
    """
    model = loaded.model
    if not isinstance(model, NgramModel):
        raise UnsupportedError("an ARPA file holds the back-off table of an n-gram model, and this is a model "
                               f"of kind {model.config.kind!r}.", where=str(loaded.path),
                               remedy="Choose another format, or convert a model of kind ngram.")
    require_free(out, single=True)
    roles = roles_of(loaded.tokenizer, model.end, model.vocab_size)
    words, table = words_of(loaded.tokenizer, roles, model.vocab_size), model.readout.table()
    try:
        with made(out.parent), new_file(out) as draft:
            write_arpa(table, draft, words, compress=out.suffix == ".gz")
            difference = _difference(table, read_arpa(draft, words).table)
    except OSError as error:
        raise not_written(error, out, sum(tensor.nbytes for tensor in model.buffers())) from error
    return _converted(out, "arpa", difference, _notes_out(loaded.tokenizer, model, roles))


def sum_error(loaded: Loaded) -> float:
    """The error that the digits of an ARPA file allow in the logarithm of a sum of probabilities, for a model read from
    one; 0 for other models. A log-probability is a sum of at most as many numbers as the order."""
    order = loaded.config.order if "arpa" in loaded.facts and isinstance(loaded.config, NgramConfig) else 0
    return order * DIGITS


def from_arpa(path: Path, out: Path, tokenizer: Tokenizer | None = None, *, replace: bool = False) -> Converted:
    """Convert an ARPA file to a checkpoint, which is put in place only after it has been read back and compared.

    Args:
        path: the file, which may be gzipped.
        out: the folder of the checkpoint.
        tokenizer: the tokenizer whose pieces or ids the file's words are; None: they are words of text.
        replace: replace a folder whose manifest proves that Weft wrote everything in it.

    Raises:
        DataError: the file is damaged, or has words that the tokenizer does not have.
        OccupiedError: there is something at ``out`` that is not Weft's, or that is not to be replaced.
        FailedError: the checkpoint does not give the file's probabilities, or there is no room.
    """
    require_free(out, proof=by_manifest, replace=replace)
    found = read_words(path)
    kept = tokenizer or WordTokenizer([word for word in found if word not in (*RESERVED, UNKNOWN.upper())])
    end, words = _vocabulary(found, kept)
    table = read_arpa(path, words).table
    model = NgramModel(NgramConfig(vocab_size=table.vocab_size, order=table.order, end=end))
    model.readout.hold(table)
    facts = {"arpa": {"file": path.name, "sha256": sha256_of(path)}}
    try:
        with replacing(out, proof=by_manifest if replace else None) as draft:
            fill_checkpoint(draft, model, kept, facts=facts)
            again = load_checkpoint(draft).model
            assert isinstance(again, NgramModel), "as it was saved"
            difference = _difference(table, again.readout.table())
    except (OSError, SafetensorError) as error:
        raise not_written(error, out, sum(tensor.nbytes for tensor in model.buffers())) from error
    # Weft keeps a file's numbers, and those of files with few digits deviate by their rounding.
    sums = np.exp(table.log_distribution(_contexts(table))).sum(1)
    notes = [f"{table.vocab_size:,} words, {table.order}-grams; the probabilities after a context sum to 1 within "
             f"{np.abs(sums - 1).max():.1g}, as the file's digits have it"]
    if table.vocab_size > kept.vocab_size:
        notes.append(f"the tokenizer has no id for {UNKNOWN}, so the model has one more than the tokenizer")
    return _converted(out, "weft", difference, tuple(notes))


def _converted(out: Path, target: str, difference: float, notes: tuple[str, ...]) -> Converted:
    return Converted(path=out, target=target, family=None, dtype="float64", difference=difference, reader=None,
                     foreign=None, pooled=None, notes=notes)


def _vocabulary(found: Sequence[str], tokenizer: Tokenizer) -> tuple[int | None, list[str]]:
    """The id that stands for the start symbol in contexts, and the file's word for each id."""
    listed, opening = set(found), opening_of(tokenizer)
    unknown = UNKNOWN if UNKNOWN in listed or UNKNOWN.upper() not in listed else UNKNOWN.upper()
    size = tokenizer.vocab_size + (unknown in listed and roles_of(tokenizer, None, 0).unknown is None)
    plain = words_of(tokenizer, Roles(None, None), size)
    numbers = in_ids(found, plain)
    names = [str(place) for place in range(size)] if numbers else plain
    # Where the opening token is listed as a word, the file was counted with that token before each document.
    end = None if opening is not None and names[opening] in listed else opening
    roles = roles_of(tokenizer, end, size)
    words = names if numbers else words_of(tokenizer, roles, size)
    for place, word in ((roles.end, END if END in listed else None), (roles.unknown, unknown)):
        if place is not None and word is not None:
            words[place] = word
    return end, words


def _notes_out(tokenizer: Tokenizer | None, model: NgramModel, roles: Roles) -> tuple[str, ...]:
    notes = []
    opening = None if tokenizer is None else opening_of(tokenizer)
    if opening is not None and model.end != opening:
        notes.append(f"documents open with the token {opening}, which stands in the file as a word behind {START}; "
                     "other programs need it there too")
    if roles.end is None:
        notes.append(f"no token ends a document, so the file has no {END}")
    if roles.unknown is None:
        notes.append(f"the vocabulary has no unknown word, so the file has no {UNKNOWN}")
    return tuple(notes)


def _difference(ours: NgramTable, theirs: NgramTable) -> float:
    """The largest difference of log p over all words, in contexts that are listed and in random ones. Raises
    `FailedError`: more than rounding explains."""
    contexts = _contexts(ours)
    one, other = ours.log_distribution(contexts), theirs.log_distribution(contexts)
    zero = np.isneginf(one)
    apart = float(np.abs(np.where(zero, 0.0, one) - np.where(zero, 0.0, other)).max())
    if not (zero == np.isneginf(other)).all() or not apart <= BOUND:
        raise FailedError(f"what was written, read again, gives log-probabilities that differ by up to {apart:.3g} "
                          f"nats, where rounding explains {BOUND:g}.", where="convert",
                          remedy="Please report this model.")
    return apart


def _contexts(table: NgramTable) -> Int64[np.ndarray, "M C"]:
    """Contexts of n-1 words: some of the longest n-grams, spread over the table, and random ones."""
    count = max(4, min(ASKED, CELLS // table.vocab_size))
    reach, rng = table.order - 1, np.random.default_rng(SEED)
    drawn = rng.integers(table.vocab_size, size=(count // 2, reach))
    level = table.levels[-1].keys
    if not reach or not len(level):
        return drawn
    places = np.linspace(0, len(level) - 1, count - count // 2).astype(np.int64)
    return np.concatenate([spell(table.levels, places, table.order, table.base)[:, :reach], drawn])


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
    """The word of each id, all distinct, none with white space. Raises `UnsupportedError`: a words tokenizer has one of
    ARPA's own words as an ordinary one."""
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
