"""Files of conversations as corpora: each conversation is a document that is never cut to hold out a share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from weft.core.errors import DataError
from weft.data.compression import content_suffix
from weft.data.conversation import Pair, Shape, StoredConversation, conversation_of, pair_of
from weft.data.corpus import Corpus
from weft.data.document import Document
from weft.data.documents import Documents, SpanTable, TextRange, columns_of
from weft.data.json_arrays import ARRAY_SUFFIXES
from weft.data.places import Where, files_of
from weft.data.records import RECORD_SUFFIXES, text_of, whole_records
from weft.data.spool import Spool
from weft.data.text import nothing

CONVERSATION_SUFFIXES = RECORD_SUFFIXES | ARRAY_SUFFIXES
Read: TypeAlias = Callable[[Any, str], StoredConversation | Pair]


def read_conversations(path: Where, shape: Shape | None = None, *, pairs: bool = False) -> Corpus:
    """The conversations of the files of a place (`weft.data.places.files_of`): JSON Lines, a JSON array (``.json``), or
    Parquet, compressed or not. `talk_of` and `preference_of` read a document back.

    Args:
        path: the file, folder, pattern or list.
        shape: of the records; None: recognised, record by record.
        pairs: read preference pairs.

    Raises:
        DataError: the path is missing, a file has another format, there is no record, or one is wrong; ``where`` has
            its file and line.
        MissingExtra: Parquet or ``.zst``, and the package that reads it is not installed.
    """
    def read(record: Any, where: str) -> StoredConversation | Pair:
        return pair_of(record, where, shape) if pairs else conversation_of(record, where, shape)

    files = files_of(path, CONVERSATION_SUFFIXES)
    found = Documents([_table(file, name, read) for file, name in files.named()])
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
        for held in json.loads(bytes(document.utf8))[:-1]:
            yield from (text for message in held for text in _contents(message["content"]))


def _contents(content: Any) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]


def _table(file: Path, name: str, read: Read) -> SpanTable:
    suffix = content_suffix(file)
    if suffix not in CONVERSATION_SUFFIXES:
        raise DataError(f"the file's name ends in {suffix or 'nothing'}, and conversations are read from files of "
                        f"{' '.join(sorted(CONVERSATION_SUFFIXES))}.", where=str(file),
                        remedy="Give such a file, or rename it to the suffix of its format.")
    spool = Spool(str(file))

    def spans() -> Iterator[TextRange]:
        for number, where, record in whole_records(file, suffix):
            first = spool.size
            text = json.dumps(read(record, where), ensure_ascii=False, separators=(",", ":"))
            spool.add(text_of(text, "record", "record", where).encode())
            yield TextRange(first, spool.size, number)

    columns = columns_of(spans())
    return SpanTable(name, spool.view(), columns)
