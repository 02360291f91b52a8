"""The stored numbers, which `make test` compares with, are those of the transformers that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from against_transformers.store import CASES, KEPT, row_of
from against_transformers.tiny import alone
from interop.huggingface.tiny_folders import stored, write
from weft import api


@pytest.mark.parametrize("name", CASES)
def test_transformers_still_gives_the_stored_numbers(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    found = torch.atleast_2d(alone(tmp_path, row_of(CASES[name])))[-KEPT:]
    torch.testing.assert_close(found, torch.tensor(stored()[name]["logits"]), atol=5e-5, rtol=0)


def test_a_class_that_transformers_has_dropped_is_named_when_its_folder_is_written(tmp_path: Path) -> None:
    write(tmp_path / "a", "transfo-xl")
    api.convert(tmp_path / "a", tmp_path / "b", to="weft")
    done = api.convert(tmp_path / "b", tmp_path / "c", to="hf")
    assert (done.foreign, done.difference) == (None, 0)
    assert any(note.startswith("transformers ") and "no longer has the class TransfoXLLMHeadModel, so only Weft has "
               "compared the numbers; version 4.37.2 opens the folder." in note for note in done.notes)
