"""What ``save_to_disk`` of the package `datasets` wrote, and local folders that it loads."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pyarrow as arrow
import pytest
from pyarrow import parquet

from weft.core.errors import DataError
from weft.data.saved_datasets import is_saved_dataset, loaded_dataset, saved_dataset
from weft.data.settings import DataSettings
from weft.data.source_settings import HubDataset, TextSource
from weft.data.source_texts import split_source

ROWS = [{"ask": f"{i}?", "body": f"text {i * 37 % 101}", "n": i} for i in range(250)]
FIELDS = {"text_field": "body"}


@pytest.fixture(scope="module")
def rows() -> datasets.Dataset:
    return datasets.Dataset.from_list(ROWS)


@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_saved_is_read_row_by_row(rows: datasets.Dataset, tmp_path: Path, shards: int) -> None:
    """Also what was shuffled, filtered or sorted, of which the package keeps places in a table of before."""
    for name, each in (("whole", rows), ("shuffled", rows.shuffle(seed=1)), ("some", rows.select(range(7, 200, 5))),
                       ("filtered", rows.filter(lambda row: row["n"] % 3 == 0)), ("sorted", rows.sort("body"))):
        each.save_to_disk(tmp_path / name, num_shards=shards)
        assert is_saved_dataset(tmp_path / name)
        found = saved_dataset(tmp_path / name, {"prompt_field": "ask", **FIELDS}, whole=True)
        assert [document.text for document in found.documents] == [row["ask"] + row["body"] for row in each]
        assert len({document.name for document in found.documents}) == len(each)


def test_of_several_splits_one_is_named(rows: datasets.Dataset, tmp_path: Path) -> None:
    datasets.DatasetDict({"train": rows, "test": rows.select(range(4))}).save_to_disk(tmp_path / "both")
    with pytest.raises(DataError, match=r"several splits: train, test\. Name the folder of one, such as .*train"):
        saved_dataset(tmp_path / "both", FIELDS, whole=False)
    found = saved_dataset(tmp_path / "both/test", FIELDS, whole=False)
    assert [document.text for document in found.documents] == [row["body"] for row in ROWS[:4]]


def test_a_saved_data_set_is_a_source_by_its_path(rows: datasets.Dataset, tmp_path: Path) -> None:
    rows.save_to_disk(tmp_path / "saved")
    train, held = split_source("web", TextSource(path=str(tmp_path / "saved"), text_field="body", weight=1),
                               DataSettings())
    assert sorted([*train.texts(), *held.texts()]) == sorted(row["body"] for row in ROWS)
    with pytest.raises(DataError, match=r"save_to_disk wrote.*Name it with path in place of dataset"):
        split_source("web", TextSource(dataset=HubDataset(name=str(tmp_path / "saved")), weight=1), DataSettings())


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_local_folder_is_loaded_by_its_name(rows: datasets.Dataset, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for split, each in (("train", rows), ("test", rows.select(range(5)))):
        write = each.to_parquet if kind == "parquet" else each.to_json
        write(folder / f"{split}.{'parquet' if kind == 'parquet' else 'jsonl'}")
    for split, count in (("train", len(ROWS)), ("test", 5)):
        found = loaded_dataset(str(folder), FIELDS, config=None, split=split, revision=None, whole=False,
                               max_bytes=None)
        assert [document.text for document in found.documents] == [row["body"] for row in ROWS[:count]]


def test_columns_that_are_not_read_are_not_decoded(tmp_path: Path) -> None:
    """A damaged image beside a text is no reason to stop."""
    features = datasets.Features({"text": datasets.Value("string"), "picture": datasets.Image()})
    damaged = [{"text": f"about {i}", "picture": {"bytes": b"nothing", "path": None}} for i in range(3)]
    (tmp_path / "set").mkdir()
    parquet.write_table(arrow.Table.from_pylist(damaged, features.arrow_schema), tmp_path / "set/train.parquet")
    found = loaded_dataset(str(tmp_path / "set"), {"text_field": "text"}, config=None, split="train", revision=None,
                           whole=False, max_bytes=None)
    assert json.dumps(list(found.texts())) == '["about 0", "about 1", "about 2"]'
