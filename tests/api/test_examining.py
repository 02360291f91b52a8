"""What `check`, `plan` and `draw` take for a preset, and what for a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft import api
from weft.core.errors import CheckpointError


def test_a_preset_is_meant_beside_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lstm").mkdir()
    (tmp_path / "lstm" / "notes.txt").write_text("of another project", encoding="utf-8")
    plan = api.plan("lstm", ["model.d_model=16"], context=8)
    assert plan.parameters.total > 0
    with pytest.raises(CheckpointError, match=r"not a checkpoint: there is no config\.json in it"):
        api.plan("./lstm")


def test_a_checkpoint_with_the_name_of_a_preset_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lstm").mkdir()
    (tmp_path / "lstm" / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError):
        api.plan("lstm")
