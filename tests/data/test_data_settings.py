"""The data section of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.data.division import Heading
from weft.data.settings import DataSettings
from weft.training.config import DataSettings as FromTraining


def settings(**values: Any) -> DataSettings:
    return parse(DataSettings, values)


def test_the_defaults_are_what_they_were() -> None:
    assert FromTraining is DataSettings
    made = settings()
    assert (made.path, made.max_bytes, made.validation, made.order_seed, made.split_seed) == (None, None, 0.1, 0, 0)
    assert made.division == "file" and made.prepared is None


def test_a_held_out_text_takes_the_place_of_the_share() -> None:
    made = settings(path="a.txt", validation_path="b.txt")
    assert made.validation is None
    assert settings(**made.model_dump(mode="json")) == made


def test_a_heading_becomes_a_division_and_survives_the_round_trip() -> None:
    made = settings(path="a.txt", documents={"heading": "= [^=]+ =$"})
    assert made.division == Heading("= [^=]+ =$")
    assert settings(**made.model_dump(mode="json")) == made
    assert settings(path="a.txt", documents="line").division == "line"


@pytest.mark.parametrize(("values", "message"), [
    ({"path": "a", "validation_path": "b", "validation": 0.1},
     r"validation: a share of 0\.1 beside the held-out text b\. Give one of them"),
    ({"path": "a", "validation": None}, r"validation: null, and no validation_path\. Give a share such as 0\.1"),
    ({"path": "a", "validation_path": "a"}, r"validation_path: a is the training text\. Hold out a text that is not"),
    ({"path": "a", "test_path": "a"}, r"test_path: a is the training text"),
    ({"text_field": "body"}, r"text_field: 'body', while the Python standard library's source has no records"),
    ({"path": "a", "documents": {"heading": "(="}}, r"heading: '\(=' is not a regular expression .* Give one such as"),
    ({"path": "a", "documents": "page"}, r"documents.* 'file', 'line' or 'paragraph', got 'page'"),
    ({"path": "a", "text_feld": "x"}, r"unknown key 'text_feld'\. Did you mean 'text_field'\?"),
])
def test_what_does_not_fit_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**values)


def test_a_folder_of_text_is_not_taken_for_a_prepared_one(tmp_path: Path) -> None:
    (tmp_path / "train.bin.txt").write_text("x")
    assert settings(path=str(tmp_path)).prepared is None
