"""Every family gives transformers' numbers: logits of ragged batches, greedy decoding, gradients, both directions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from against_transformers.tiny import (
    TOLERANCE,
    Case,
    all_cases,
    alone,
    build,
    encoder_cases,
    given,
    gradient_cases,
    logits_of,
    opened,
    rows,
    saved,
)
from weft import api
from weft.families.family import families
from weft.interop.formats import published
from weft.interop.huggingface.folder import open_folder
from weft.interop.huggingface.loading import load_model
from weft.interop.verify import run

NAMED = [pytest.param(case, id=case.name) for case in all_cases()]
STEPS = 12


@pytest.mark.parametrize("case", NAMED)
def test_each_row_of_a_batch_is_that_row_alone_in_transformers(case: Case, tmp_path: Path) -> None:
    saved(case, tmp_path)
    prompts = given(case)
    scored = api.score(tmp_path, prompts, logits=True)
    assert scored.logits is not None
    for row, logits in zip(prompts, scored.logits, strict=True):
        torch.testing.assert_close(logits, alone(tmp_path, row), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", NAMED)
def test_greedy_decoding_through_the_state_is_full_recomputation(case: Case, tmp_path: Path) -> None:
    saved(case, tmp_path)
    prompts = given(case, (3, 7, 15))
    found = api.generate(tmp_path, prompts, max_new_tokens=STEPS)
    named = json.loads((tmp_path / "config.json").read_text(encoding="utf-8")).get("eos_token_id")
    ends = named if isinstance(named, list) else [named]
    for row, continued in zip(prompts, found.rows, strict=True):
        wanted = list(row if isinstance(row, list) else row["target"])
        read = len(wanted)
        for _ in range(STEPS):
            longer = wanted if isinstance(row, list) else {**row, "target": wanted}
            wanted.append(int(alone(tmp_path, longer)[-1].argmax()))
        made = list(continued.tokens)
        assert made == wanted[read:read + len(made)]
        assert len(made) == STEPS or made[-1] in ends, "it stops at the end of a text alone"


@pytest.mark.parametrize("case", NAMED)
def test_what_weft_writes_is_what_transformers_wrote(case: Case, tmp_path: Path) -> None:
    """Through a checkpoint of Weft and back: the same class, the same tensors to the bit, the same numbers."""
    model = saved(case, tmp_path / "theirs")
    api.convert(tmp_path / "theirs", tmp_path / "ours", to="weft")
    done = api.convert(tmp_path / "ours", tmp_path / "back", to="hf", max_shard_size="20KB")
    again, info = opened(tmp_path / "back", output_loading_info=True)
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
    folder = open_folder(tmp_path)
    ours = load_model(folder)
    tokens = torch.tensor(rows(67, (14, 14)))
    for logits in (logits_of(theirs, tokens), run(ours, tokens)):
        torch.log_softmax(logits, -1).gather(-1, tokens[..., None]).sum().backward()
    with torch.no_grad():  # saved like weights, gradients come under the names of the files
        for parameter in theirs.parameters():
            parameter.copy_(parameter.grad)
    theirs.save_pretrained(tmp_path / "gradients")
    wanted = load_file(tmp_path / "gradients" / "model.safetensors")
    own = {name: parameter.grad for name, parameter in ours.named_parameters()}
    buffers = {name for name, _ in ours.named_buffers()}  # which have no gradients
    compared = sum(len(rule.theirs) for rule in folder.account.rules if buffers & set(rule.ours))
    fixed = {name for name, _ in theirs.named_buffers()}  # trained in Weft alone: BART's bias of logits
    for rule in (rule for rule in folder.account.rules if not buffers & set(rule.ours)):
        gradients = [own[name] for name in rule.ours]
        assert all(gradient is not None for gradient in gradients)
        for name, found in zip(rule.theirs, rule.write([each for each in gradients if each is not None]), strict=True):
            if name not in fixed:
                torch.testing.assert_close(found, wanted[name], atol=2e-4, rtol=1e-4, msg=name)
            compared += 1
    assert compared == len(wanted)


def test_every_family_with_a_format_has_cases() -> None:
    tried = {build(case).config.model_type for case in (*all_cases(), *encoder_cases())}
    # Images are in test_images; the reference of transfo-xl needs an older transformers, and its logits are stored.
    tried |= {"vit", "transfo-xl"}
    assert tried == {family.native.model_type for family in families().values() if family.native is not None}


def test_every_published_size_is_what_weft_builds() -> None:
    assert [each.name for each in published() if not each.agrees] == []
