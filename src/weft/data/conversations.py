"""Files of conversations as corpora: each conversation is a document that is never cut to hold out a share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from weft.data.compression import ARRAY_SUFFIXES
from weft.data.conversation import Pair, Shape, StoredConversation, conversation_of, pair_of
from weft.data.corpus import Corpus
from weft.data.document import Document
from weft.data.document_buffer import Documents
from weft.data.places import Where, files_of
from weft.data.records import RECORD_SUFFIXES, whole_records
from weft.data.rows import json_table, require_suffix
from weft.data.text import nothing

CONVERSATION_SUFFIXES = RECORD_SUFFIXES | ARRAY_SUFFIXES


def read_conversations(path: Where, shape: Shape | None = None, *, pairs: bool = False) -> Corpus:
    """The conversations of the files of a place (`weft.data.places.files_of`): JSON Lines, a JSON array (``.json``), or
    Parquet, compressed or not. `talk_of` and `preference_of` read a document back.

    Args:
        path: the file, folder, pattern or list.
        shape: of the records; None: recognised, record by record.

    Raises:
        DataError: the path is missing, a file has another format, there is no record, or one is wrong; ``where`` has
            its file and line.
        MissingExtra: Parquet or ``.zst``, and the package that reads it is not installed.
    """
    def kept(file: Path) -> Iterator[tuple[int, str, StoredConversation | Pair]]:
        suffix = require_suffix(file, CONVERSATION_SUFFIXES, "conversations")
        for number, where, record in whole_records(file, suffix):
            yield number, where, (pair_of if pairs else conversation_of)(record, where, shape)

    files = files_of(path, CONVERSATION_SUFFIXES)
    found = Documents([json_table(name, str(file), kept(file)) for file, name in files.named()])
    if not found:
        raise nothing(path, CONVERSATION_SUFFIXES)
    return Corpus(files.name, found, whole=True)


def talk_of(document: Document) -> StoredConversation:
    """The conversation that a document holds."""
    return StoredConversation(*json.loads(bytes(document.utf8)))


def preference_of(document: Document) -> Pair:
    """The preference pair that a document holds."""
    return Pair(*json.loads(bytes(document.utf8)))


def texts_in(corpus: Corpus) -> Iterator[str]:
    """The text of every message, from which a tokenizer learns."""
    for document in corpus.documents:
        for message in (each for held in json.loads(bytes(document.utf8))[:-1] for each in held):
            content = message["content"]
            yield from [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]
