"""Rows from outside: what is read, and what every refusal says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from decoding.small_models import Bigram, build
from weft.core.errors import DataError, InputError
from weft.decoding import Row, parse_rows, read_rows
from weft.decoding.rows import check_rows, with_start

MODEL = Bigram([[0.5, 0.5], [0.5, 0.5]])


def test_every_form_of_row(tmp_path: Path) -> None:
    data = [[5, 3], [], {"tokens": [7]}, {"source": [4, 4], "target": [1]}, {"source": [2]}]
    wanted = [Row((5, 3)), Row(()), Row((7,)), Row((1,), (4, 4)), Row((), (2,))]
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(data))
    assert read_rows(file) == parse_rows(data) == wanted
    assert parse_rows([np.array([5, 3], dtype=np.uint8), (np.int64(7),), Row((1,))]) == [
        Row((5, 3)), Row((7,)), Row((1,))]


def test_types_and_global_tokens_stand_beside_the_ids() -> None:
    data = [{"tokens": [5, 3], "types": [0, 1], "global": [True, False]}, {"tokens": [1], "types": None}]
    assert parse_rows(data) == [Row((5, 3), None, (0, 1), (1, 0)), Row((1,))]
    for name in ("types", "global"):
        with pytest.raises(InputError, match=rf"rows\[0\]\.{name}: a language model reads no {name}\. Leave them out"):
            check_rows(parse_rows([{"tokens": [1], name: [0]}]), MODEL)


@pytest.mark.parametrize(("data", "message"), [
    ({"tokens": [1]}, r"rows: an object where a list of rows is expected\. Give a list of rows, such as"),
    ([], r"rows: the list of rows is empty\. Give at least one row"),
    ([[1], "abc"], r'rows\[1\]: the str "abc" where a list of ids is expected\. Give token ids'),
    ([[1], 5], r"rows\[1\]: the int 5 where a list of ids is expected"),
    ([[1, 2.0]], r"rows\[0\]\[1\]: the float 2\.0 where a token id is expected\. Give whole numbers"),
    ([[True]], r"rows\[0\]\[0\]: the bool true where a token id is expected"),
    ([[1, None]], r"rows\[0\]\[1\]: null where a token id is expected"),
    ([[[1]]], r"rows\[0\]\[0\]: a list where a token id is expected"),
    ([{"token": [1]}], r"rows\[0\]: unknown key 'token'\. Did you mean 'tokens'\?"),
    ([{}], r"rows\[0\]: the row has no ids\. Give 'tokens', or 'source' and 'target'"),
    ([{"target": [1]}], r"rows\[0\]: the row has a 'target' and no 'source'\. Add the source"),
    ([{"source": [1], "tokens": [1]}],
     r"rows\[0\]: the row has both 'source' and 'tokens'\. Name the ids that follow a source 'target'"),
    ([{"source": [1], "target": "x"}], r'rows\[0\]\.target: the str "x" where a list of ids is expected'),
    ([{"tokens": [1], "types": 0}], r"rows\[0\]\.types: the int 0 where a list of ids is expected"),
    ([{"tokens": [1], "global": ["x"]}], r'rows\[0\]\.global\[0\]: the str "x" where a token id is expected'),
    ([{"source": [1], "types": [0]}], r"rows\[0\]: the row has both 'source' and 'types'\. Leave one of them out"),
    ([{"tokens": {}}], r"rows\[0\]\.tokens: an object where a list of ids is expected"),
])
def test_what_is_no_row(data: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_rows(data)


@pytest.mark.parametrize(("text", "message"), [
    ("[[1, 2], [3", r"rows\.json: the file cannot be read \(not JSON: Expecting ',' delimiter: line 1 column 12 "),
    ("[[NaN]]", r"rows\.json\[0\]\[0\]: the float NaN where a token id is expected"),
    ("[" * 100_000, r"rows\.json: the file cannot be read \(lists or mappings nested more than 64 deep\)\. Give"),
])
def test_files_that_hold_no_rows(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "rows.json"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_rows(file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "latin.json").write_bytes(b'["\xe9"]')
    with pytest.raises(DataError, match="no such file"):
        read_rows(tmp_path / "none.json")
    with pytest.raises(DataError, match="the file is empty"):
        read_rows(tmp_path / "empty.json")
    with pytest.raises(DataError, match="the file is not UTF-8"):
        read_rows(tmp_path / "latin.json")
    with pytest.raises(InputError, match=r"a folder\. Give the path of a JSON file"):
        read_rows(tmp_path)


def test_rows_a_model_cannot_take() -> None:
    from weft.models.encoder_decoder import EncoderDecoderConfig

    reader = build(EncoderDecoderConfig.examples()[0])
    check_rows([Row((0, 1)), Row(())], MODEL)
    check_rows([Row((0, 1), (3,))], reader)
    for rows, model, message in (
        ([Row((0,)), Row((1, 2))], MODEL, r"rows\[1\]\[1\]: id 2 is outside the vocabulary of 2 ids.*from 0 to 1"),
        ([Row((-1,))], MODEL, r"rows\[0\]\[0\]: id -1 is outside the vocabulary"),
        ([Row((0,), (1,))], MODEL, r"rows\[0\]\.source: the row has a source, and this model takes none\. Give a list"),
        ([Row((0,))], reader, r"rows\[0\]: the row has no source, and this model decodes from one.*\"source\""),
        ([Row((0,), ())], reader, r"rows\[0\]\.source: the source is empty\. Give at least one id"),
        ([Row((0,), (-2,))], reader, r"rows\[0\]\.source\[0\]: id -2 is outside the vocabulary of 11 ids"),
        ([Row((99,), (1,))], reader, r"rows\[0\]\.target\[0\]: id 99 is outside the vocabulary of 11 ids"),
    ):
        with pytest.raises(InputError, match=message):
            check_rows(rows, model)


def test_start_tokens() -> None:
    rows = [Row(()), Row((1,))]
    assert with_start(rows, None, MODEL, only_empty=True) == rows
    assert with_start(rows, 0, MODEL, only_empty=True) == [Row((0,)), Row((1,))]
    assert with_start(rows, 0, MODEL, only_empty=False) == [Row((0,)), Row((0, 1))]
