"""Every family gives transformers' numbers: logits of ragged batches, greedy decoding, gradients, both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from against_transformers.tiny import (
    TOLERANCE,
    Case,
    all_cases,
    alone,
    build,
    encoder_cases,
    gradient_cases,
    rows,
    saved,
)
from weft import api
from weft.families.family import families
from weft.interop.huggingface.folder import open_folder
from weft.interop.huggingface.loading import load_model
from weft.interop.listing import published

NAMED = [pytest.param(case, id=case.name) for case in all_cases()]
STEPS = 12


@pytest.mark.parametrize("case", NAMED)
def test_each_row_of_a_batch_is_that_row_alone_in_transformers(case: Case, tmp_path: Path) -> None:
    saved(case, tmp_path)
    given = rows(67)
    scored = api.score(tmp_path, given, logits=True)
    assert scored.logits is not None
    for row, logits in zip(given, scored.logits, strict=True):
        torch.testing.assert_close(logits, alone(tmp_path, row), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", NAMED)
def test_greedy_decoding_through_the_state_is_full_recomputation(case: Case, tmp_path: Path) -> None:
    saved(case, tmp_path)
    given = rows(67, (3, 7, 15))
    found = api.generate(tmp_path, given, max_new_tokens=STEPS)
    for row, continued in zip(given, found.rows, strict=True):
        wanted = list(row)
        for _ in range(STEPS):
            wanted.append(int(alone(tmp_path, wanted)[-1].argmax()))
        assert list(continued.tokens) == wanted[len(row):]


@pytest.mark.parametrize("case", NAMED)
def test_what_weft_writes_is_what_transformers_wrote(case: Case, tmp_path: Path) -> None:
    """Through a checkpoint of Weft and back: the same class, the same tensors to the bit, the same numbers."""
    model = saved(case, tmp_path / "theirs")
    api.convert(tmp_path / "theirs", tmp_path / "ours", to="weft")
    done = api.convert(tmp_path / "ours", tmp_path / "back", to="hf", max_shard_size="20KB")
    opened: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    again, info = opened
    assert done.foreign is not None and done.foreign < TOLERANCE
    assert type(again) is type(model)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    wanted = model.state_dict()
    assert set(again.state_dict()) == set(wanted)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name
    assert api.load(tmp_path / "back").config == api.load(tmp_path / "theirs").config


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in gradient_cases()])
def test_gradients_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    theirs = saved(case, tmp_path)
    opened = open_folder(tmp_path)
    ours = load_model(opened)
    tokens = torch.tensor(rows(67, (14, 14)))
    for logits in (theirs(tokens).logits, ours(tokens).y):
        torch.log_softmax(logits, -1).gather(-1, tokens[..., None]).sum().backward()
    with torch.no_grad():  # saved like weights, gradients come under the names of the files
        for parameter in theirs.parameters():
            parameter.copy_(parameter.grad)
    theirs.save_pretrained(tmp_path / "gradients")
    wanted = load_file(tmp_path / "gradients" / "model.safetensors")
    own = {name: parameter.grad for name, parameter in ours.named_parameters()}
    compared = 0
    for rule in opened.account.rules:
        gradients = [own[name] for name in rule.ours]
        assert all(gradient is not None for gradient in gradients)
        for name, found in zip(rule.theirs, rule.write([each for each in gradients if each is not None]), strict=True):
            torch.testing.assert_close(found, wanted[name], atol=2e-4, rtol=1e-4, msg=name)
            compared += 1
    assert compared == len(wanted)


def test_every_family_with_a_format_has_cases() -> None:
    tried = {build(case).config.model_type for case in (*all_cases(), *encoder_cases())}
    assert tried == {family.native.model_type for family in families().values() if family.native is not None}


def test_every_published_size_is_what_weft_builds() -> None:
    assert [each.name for each in published() if not each.agrees] == []
