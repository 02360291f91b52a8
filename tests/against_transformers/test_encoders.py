"""Every family of encoders gives transformers' numbers with every head: rows alone and padded on the right, types of
tokens, both directions, gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from against_transformers.tiny import TOLERANCE, Case, alone, build, encoder_cases, opened, rows, saved
from weft import api
from weft.core.heads import outputs
from weft.core.model import EncoderInputs
from weft.core.span import Span
from weft.interop.huggingface.folder import open_folder
from weft.interop.huggingface.loading import load_model

NAMED = [pytest.param(case, id=case.name) for case in encoder_cases()]
FIRST = [pytest.param(case, id=case.name) for case in encoder_cases() if "plain-ForMaskedLM" in case.name]


@pytest.mark.parametrize("case", NAMED)
def test_each_row_of_a_batch_is_that_row_alone_in_transformers(case: Case, tmp_path: Path) -> None:
    saved(case, tmp_path)
    given = rows(67)
    found = api.score(tmp_path, given, logits=True).logits
    assert found is not None
    for row, logits in zip(given, found, strict=True):
        torch.testing.assert_close(logits, alone(tmp_path, row), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", NAMED)
def test_padding_and_types_are_read_as_in_transformers(case: Case, tmp_path: Path) -> None:
    """Rows padded on the right, with the attention mask that names the padding; values of padding are not compared."""
    saved(case, tmp_path)
    theirs, ours = opened(tmp_path), api.load(tmp_path).model
    sizes, lengths = ours.reads(), torch.tensor([9, 4, 1])
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(67, (3, 9), generator=generator)
    valid = torch.arange(9) < lengths[:, None]
    pad = theirs.config.pad_token_id or 0
    given: dict[str, Any] = {"input_ids": torch.where(valid, tokens, pad), "attention_mask": valid.long()}
    types = torch.randint(sizes["types"], (3, 9), generator=generator) if "types" in sizes else None
    if types is not None:
        given["token_type_ids"] = types
    span = Span(count=lengths)
    with torch.no_grad():
        wanted = theirs(**given)
        h = ours.vectors(EncoderInputs(tokens=tokens, types=types), span).y
        found = outputs(ours.head, h, span)
    expected = wanted.last_hidden_state if ours.head is None else wanted.logits
    if expected.dim() == 3:
        found, expected = found[valid], expected[valid]
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", NAMED)
def test_what_weft_writes_is_what_transformers_wrote(case: Case, tmp_path: Path) -> None:
    """Through a checkpoint of Weft and back: the same class, the same tensors to the bit, the same numbers."""
    model = saved(case, tmp_path / "theirs")
    api.convert(tmp_path / "theirs", tmp_path / "ours", to="weft")
    done = api.convert(tmp_path / "ours", tmp_path / "back", to="hf", max_shard_size="20KB")
    again, info = type(model).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert done.foreign is not None and done.foreign < TOLERANCE
    assert type(opened(tmp_path / "back")) is type(model)
    assert all("pooler." in name or "embed_positions" in name for name in info["missing_keys"]), (
        "only a map that no hidden vector needs, and sines and cosines")
    assert not info["unexpected_keys"] and not info["mismatched_keys"]
    wanted = {name: tensor for name, tensor in model.state_dict().items() if name not in info["missing_keys"]}
    for name, tensor in wanted.items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert api.load(tmp_path / "back").config == api.load(tmp_path / "theirs").config
    assert again.config.id2label == model.config.id2label


@pytest.mark.parametrize("case", FIRST)
@pytest.mark.parametrize("change", ["added", "removed"])
def test_files_with_and_without_the_prefix_are_read(case: Case, change: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    bare = Case(case.name, case.config, case.model.replace("ForMaskedLM", "Model"), case.values)
    model = saved(bare if change == "added" else case, tmp_path)
    given = [3, 9, 60, 7]
    wanted = alone(tmp_path, given)
    prefix = f"{model.base_model_prefix}."
    tensors = load_file(tmp_path / "model.safetensors")
    changed = {(prefix + name if change == "added" else name.removeprefix(prefix)): tensor
               for name, tensor in tensors.items()}
    assert set(changed) != set(tensors)
    save_file(changed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = api.score(tmp_path, [given], logits=True).logits
    assert found is not None
    torch.testing.assert_close(found[0], wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", FIRST)
def test_gradients_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    theirs = saved(case, tmp_path)
    folder = open_folder(tmp_path)
    ours = load_model(folder)
    tokens = torch.tensor(rows(67, (14, 14))).clamp(min=2)  # transformers lets the padding's embedding learn nothing
    mine = outputs(ours.head, ours.vectors(EncoderInputs(tokens=tokens)).y, Span())
    for logits in (theirs(tokens).logits, mine):
        torch.log_softmax(logits, -1).gather(-1, tokens[..., None]).sum().backward()
    own = {name: parameter.grad for name, parameter in ours.named_parameters()}
    wanted = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    compared = 0
    for rule in folder.account.rules:
        gradients = [own[name] for name in rule.ours]
        written = rule.write([each for each in gradients if each is not None])
        for name, found in zip(rule.theirs, written, strict=True):
            expected = wanted[name]
            if expected is None and "_global." in name:  # no token is marked as global
                assert not found.any()
                continue
            assert expected is not None
            torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4, msg=name)
            compared += 1
    assert compared > 10


def test_every_case_is_of_a_class_with_its_head() -> None:
    ends = {type(build(case)).__name__ for case in encoder_cases()}
    stems = {case.config.removesuffix("Config") for case in encoder_cases()}
    assert ends == {f"{stem}{end}" for stem in stems
                    for end in ("ForMaskedLM", "Model", "ForTokenClassification", "ForSequenceClassification")}
