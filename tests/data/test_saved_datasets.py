"""Data sets that ``save_to_disk`` of the package `datasets` wrote, and places of several files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as arrow
import pytest

from weft.core.errors import DataError
from weft.data import read_text
from weft.data.saved_datasets import is_saved_dataset, loaded_dataset, saved_dataset


def saved(folder: Path, rows: list[dict[str, str]], shards: int = 2) -> Path:
    """A folder as the package writes it: Arrow streams that state.json names."""
    folder.mkdir()
    names = [f"data-{shard:05d}-of-{shards:05d}.arrow" for shard in range(shards)]
    for shard, name in enumerate(names):
        table = arrow.Table.from_pylist(rows[shard::shards])
        with arrow.OSFile(str(folder / name), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


def test_every_record_is_a_document_and_prompts_are_not_scored(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", [{"ask": f"{i}?", "body": f"text {i}"} for i in range(5)])
    assert is_saved_dataset(folder) and not is_saved_dataset(tmp_path)
    corpus = saved_dataset(folder, {"prompt_field": "ask", "text_field": "body"}, whole=True)
    assert [document.text for document in corpus.documents] == [f"{i}?text {i}" for i in (0, 2, 4, 1, 3)]
    assert {document.borders for document in corpus.documents} == {(0, 2)}
    assert corpus.documents[0].name == "data-00000-of-00002.arrow:1"


def test_what_is_wrong_with_a_data_set_is_said(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", [{"body": "a"}, {"body": "b"}])
    with pytest.raises(DataError, match=r"no field 'text'; the fields are: 'body'\. Name the one that is read"):
        saved_dataset(folder, {"text_field": "text"}, whole=False)
    (folder / "data-00000-of-00002.arrow").write_bytes(b"nothing")
    with pytest.raises(DataError, match="is not an Arrow stream, or is truncated or damaged"):
        saved_dataset(folder, {"text_field": "body"}, whole=False)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match=r"several splits: train, test\. Name the folder of one, such as .*train"):
        saved_dataset(tmp_path, {"text_field": "body"}, whole=False)
    with pytest.raises(DataError, match=r"save_to_disk wrote.*Name it with path in place of dataset"):
        loaded_dataset(str(folder), {"text_field": "body"}, config=None, split="train", revision=None, whole=False,
                       max_bytes=None)


def test_patterns_and_lists_are_read_in_order_and_each_file_once(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a/1.txt", "a/x/3.txt", "4.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    names = [document.name for document in read_text(f"{tmp_path}/**/*.txt").documents]
    assert names == ["4.txt", "a/1.txt", "a/x/3.txt", "b/2.txt"]
    listed = read_text([f"{tmp_path}/b", f"{tmp_path}/a/*.txt", f"{tmp_path}/b/2.txt"]).documents
    assert [(document.name, document.text) for document in listed] == [("b/2.txt",) * 2, ("a/1.txt",) * 2]
    with pytest.raises(DataError, match=r"no file matches the pattern\. Check it"):
        read_text(f"{tmp_path}/*.jsonl")
