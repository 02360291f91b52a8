"""Every family's numbers against those that transformers gave once (its version stands in the file)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from interop.huggingface.tiny_folders import stored, write
from weft import api
from weft.families.family import families


def logits(folder: Path, row: list[int]) -> torch.Tensor:
    found = api.score(folder, [row], logits=True).logits
    assert found is not None
    return torch.atleast_2d(found[0])


@pytest.mark.parametrize("name", stored())
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    case = stored()[name]
    wanted = torch.tensor(case["logits"])
    torch.testing.assert_close(logits(tmp_path, case["row"])[-len(wanted):], wanted, atol=5e-5, rtol=0)


@pytest.mark.parametrize("name", stored())
def test_a_checkpoint_of_weft_and_back_changes_no_bit(name: str, tmp_path: Path) -> None:
    row = stored()[name]["row"]
    write(tmp_path / "a", name)
    api.convert(tmp_path / "a", tmp_path / "b", to="weft")
    done = api.convert(tmp_path / "b", tmp_path / "c", to="hf", max_shard_size="2KB")
    assert done.family == name
    assert done.difference == 0
    assert len(list((tmp_path / "c").glob("*.safetensors"))) > 1
    assert torch.equal(logits(tmp_path / "c", row), logits(tmp_path / "a", row))
    assert api.load(tmp_path / "c").config == api.load(tmp_path / "a").config


def test_every_family_with_a_format_has_a_case() -> None:
    assert set(stored()) == {name for name, family in families().items() if family.native is not None}
