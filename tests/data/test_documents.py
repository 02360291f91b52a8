"""Documents as places of one text: the same as documents held one by one, in little memory."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.core.errors import DataError
from weft.data import Corpus, Document, read_text
from weft.data.document_buffer import AT_ONCE, Documents, SpanTable, TextRange, columns_of
from weft.data.spooled import Spool

TEXT = "one\ntwo\nthree\n\nfour é\nfive"


def table(text: str = TEXT, *, unscored: int = 0) -> SpanTable:
    spans, place = [], 0
    for number, line in enumerate(text.encode().split(b"\n"), 1):
        if line:
            spans.append(TextRange(place, place + len(line), number, unscored))
        place += len(line) + 1
    return SpanTable("f", memoryview(text.encode()), columns_of(spans))


def test_a_table_is_a_sequence_of_documents() -> None:
    lines = [("f:1", "one"), ("f:2", "two"), ("f:3", "three"), ("f:5", "four é"), ("f:6", "five")]
    made = table()
    assert [(each.name, each.text) for each in made] == lines == [(made[i].name, made[i].text) for i in range(5)]
    assert (made[-1].name, len(made), made.sizes().tolist()) == ("f:6", 5, [3, 3, 5, 7, 4])
    assert [each.name for each in made[1:3]] == ["f:2", "f:3"] and table(unscored=2)[0].borders == (0, 2)
    with pytest.raises(IndexError):
        made[5]


def test_documents_of_several_files_are_one_sequence_and_are_chosen_by_number() -> None:
    other = (Document("a", "x"), Document("b", "yy"))
    both = Documents([table(), other, (), table("last")])
    plain = [*table(), *other, *table("last")]
    assert list(both) == plain and both == tuple(plain) and both != plain[1:] and len(both) == 8
    assert [both[i] for i in range(-8, 8)] == [*plain, *plain]
    assert both.sizes().tolist() == [each.size_bytes for each in plain]
    for places in ([0, 4, 5, 7], [7, 5, 6, 0, 0], []):
        some = both.select(np.array(places, dtype=np.int64))
        assert list(some) == [plain[i] for i in places]
        assert some.sizes().tolist() == [plain[i].size_bytes for i in places]
        assert [some[i] for i in range(len(places))] == list(some)
        assert list(some.select(np.arange(len(places))[::-1])) == [plain[i] for i in places][::-1]
    assert list(both[2:7:2]) == plain[2:7:2] and list(both[::-1]) == plain[::-1]


def test_splits_and_limits_of_a_table_are_those_of_its_documents(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(f"line {i}" + " more" * (i % 7) for i in range(300)))
    held = read_text(path, documents="line")
    one_by_one = Corpus("lines.txt", tuple(held.documents))
    assert (held.sha256, held.size_bytes, held.describe()) == (one_by_one.sha256, one_by_one.size_bytes,
                                                               one_by_one.describe())
    for by in ("name", "content"):
        for mine, other in zip(held.split(0.2, seed=3, by=by), one_by_one.split(0.2, seed=3, by=by), strict=True):
            assert mine == other and len(mine.documents) > 20
    assert held.limited(900, seed=1) == one_by_one.limited(900, seed=1)
    assert held.limited(900).split(0.2) == one_by_one.limited(900).split(0.2)


def test_a_document_takes_a_few_bytes_besides_its_text(tmp_path: Path) -> None:
    count = 2 * AT_ONCE + 5
    path = tmp_path / "short.txt"
    path.write_text("\n".join(["ab"] * count))
    train, held = read_text(path, documents="line").split(0.1)
    (found,) = train.documents._tables  # type: ignore[attr-defined]
    arrays = [found._first, found._size, found._number, found._unscored]
    assert sum(array.nbytes for array in arrays) <= 10 * count
    chosen = [part.documents._chosen for part in (train, held)]  # type: ignore[attr-defined]
    assert sum(array.nbytes for array in chosen) == 4 * count
    assert len(train.documents) + len(held.documents) == count and held.documents[0].text == "ab"


def test_records_lie_on_disk_from_a_size_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"ask": f"é{i}?", "text": f"row {i}"}) + "\n" for i in range(200)))
    small = read_text(path, prompt_field="ask")
    monkeypatch.setattr("weft.data.spooled.HELD_BYTES", 100)
    made: list[Spool] = []
    monkeypatch.setattr("weft.data.text.Spool", lambda where: made.append(Spool(where, limit=100)) or made[0])
    large = read_text(path, prompt_field="ask")
    assert large == small and large.sha256 == small.sha256 and made[0].size > 100
    (found,) = large.documents._tables  # type: ignore[attr-defined]
    assert type(found.content.obj).__name__ == "mmap"


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    spool = Spool("rows.jsonl", limit=4)
    spool.add(b"abcd")
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    with pytest.raises(DataError, match=r"rows\.jsonl: 4 bytes and more cannot be kept in .* \(No space left on "
                                        r"device\)\. Free space there, or name another folder in TMPDIR"):
        spool.add(b"e")
    assert bytes(Spool("x").view()) == b""
