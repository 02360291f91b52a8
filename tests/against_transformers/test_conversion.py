"""What a conversion says where transformers opens what was written and cannot run it, or does not open it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from against_transformers.cases.llama import CASES as LLAMA
from against_transformers.tiny import Case, alone, relatives, saved
from weft import api
from weft.cli.main import app
from weft.core.errors import FailedError
from weft.interop.verify import foreign_logits

ODD: Case = relatives("Mixtral", {"odd": {"intermediate_size": 7, "num_local_experts": 3, "num_key_value_heads": 2}})[0]
"""Rows of 28 bytes, which the grouped product of transformers does not take."""


def test_sizes_that_transformers_does_not_run_are_a_note(tmp_path: Path) -> None:
    saved(ODD, tmp_path / "theirs")
    with pytest.raises(RuntimeError, match="strides"):
        alone(tmp_path / "theirs", [1, 2, 3])
    done = api.convert(tmp_path / "theirs", tmp_path / "back", to="hf")
    assert (done.foreign, done.difference) == (None, 0.0)
    (note,) = done.notes
    assert "opens the folder and cannot run it, so only Weft has compared the numbers: RuntimeError: strides" in note
    shown = CliRunner().invoke(app, ["convert", str(tmp_path / "theirs"), str(tmp_path / "shown"), "--to", "hf"])
    assert shown.exit_code == 0
    assert "cannot run it" in " ".join(shown.output.split())


def test_a_folder_that_transformers_does_not_open_is_one_error(tmp_path: Path) -> None:
    saved(LLAMA[0], tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"hidden_size": 47}))
    with pytest.raises(FailedError, match=r"convert: transformers 5\S* does not open what was written: .*Nothing"):
        foreign_logits(tmp_path, torch.tensor([[1]]))
