"""Vocabularies that others wrote, and the library that reads them: bounds on both, and errors that users can read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.core.errors import TokenizerError, WeftError
from weft.disk.documents import MEBIBYTE, Unreadable, read_document

MOST_TOKENIZER_BYTES = 256 * MEBIBYTE
"""Of a file of a vocabulary. The longest published ones, of 262,144 tokens, have 34 MB."""
MOST_IDS = 1 << 22
"""Of a vocabulary: for each id a few hundred bytes are kept. The largest published ones have about a million."""

AGAIN = "Copy the tokenizer's folder again, whole; what it asks for is not what its library can do."


def read_vocabulary(path: Path) -> bytes:
    """The content of a file of a vocabulary.

    Raises:
        OSError: it is missing or cannot be read.
        Unreadable: it is no regular file, or too long.
    """
    return read_document(path, most=MOST_TOKENIZER_BYTES)


def require_ids(count: int, where: str) -> None:
    """Refuse a vocabulary of more ids than `MOST_IDS`, before a table of them is made.

    Args:
        count: the ids that are asked for, or one more than the largest id.
        where: the file or setting that asks for them.

    Raises:
        TokenizerError: there are more.
    """
    if count > MOST_IDS:
        raise TokenizerError(f"{count:,} ids, and a vocabulary has at most {MOST_IDS:,}.", where=where,
                             remedy="Give fewer; those of a file are counted from 0 without gaps.")


@contextmanager
def library_errors(what: str, where: str) -> Iterator[None]:
    """Turn whatever the library raises into a `TokenizerError`: bare exceptions for inconsistent files, and panics,
    which are no `Exception`.

    Args:
        what: it was asked to do, after "cannot".
    """
    try:
        yield
    except (WeftError, Unreadable, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TokenizerError(f"the tokenizer cannot {what} ({reason[:300]}).", where=where, remedy=AGAIN) from None
