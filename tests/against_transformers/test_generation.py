"""A folder's generation_config.json makes of a prompt the text of transformers, where no option is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from against_transformers.cases.llama import CASES as LLAMA
from against_transformers.tiny import opened, rows, saved
from interop.huggingface.tiny_folders import change_config
from weft import api


def folder_saying(folder: Path, **settings: Any) -> Any:
    """A tiny model of transformers, opened from its folder with these settings."""
    model = saved(LLAMA[0], folder)
    transformers.GenerationConfig(pad_token_id=66, eos_token_id=2, **settings).save_pretrained(folder)
    return opened(folder, dtype=model.dtype)


@pytest.mark.filterwarnings("ignore:note. generation_config.json sets")
@pytest.mark.parametrize("settings", [
    {"repetition_penalty": 1.05}, {"repetition_penalty": 2.0}, {"do_sample": False},
    {"do_sample": True, "top_k": 1, "repetition_penalty": 1.3}], ids=str)
def test_a_text_without_options_is_the_same(settings: dict[str, Any], tmp_path: Path) -> None:
    theirs = folder_saying(tmp_path, max_new_tokens=32, **settings)
    for row in rows(67, (3, 8, 17)):
        with torch.no_grad():
            ids = torch.tensor([row])
            text = theirs.generate(ids, attention_mask=torch.ones_like(ids))[0, len(row):].tolist()
        assert list(api.generate(tmp_path, [row]).rows[0].tokens) == text


@pytest.mark.filterwarnings("ignore:note. config.json sets")
def test_a_folder_of_before_that_file_says_it_in_its_config(tmp_path: Path) -> None:
    model = saved(LLAMA[0], tmp_path)
    (tmp_path / "generation_config.json").unlink()
    change_config(tmp_path, repetition_penalty=2.0)
    theirs, row = opened(tmp_path, dtype=model.dtype), rows(67, (8,))[0]
    ids = torch.tensor([row])
    texts = [theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, pad_token_id=66,
                             **given)[0, len(row):].tolist() for given in ({}, {"repetition_penalty": 1.0})]
    assert list(api.generate(tmp_path, [row], max_new_tokens=32).rows[0].tokens) == texts[0] != texts[1]


def test_sampling_without_a_k_is_among_as_many_tokens(tmp_path: Path) -> None:
    theirs = folder_saying(tmp_path, do_sample=True, temperature=3.0, max_new_tokens=1)
    scores = theirs.generate(torch.tensor([[1, 2, 3]]), return_dict_in_generate=True, output_scores=True).scores[0]
    sampling, most, _ = api.decoding_defaults(tmp_path)
    assert (sampling.top_k, most) == (int(scores.isfinite().sum()), 1)
