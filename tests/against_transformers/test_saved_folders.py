"""Folders as `save_pretrained` writes them, and what is left of them after a way through Weft: small files byte for
byte, the configuration key by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from against_transformers.cases.gemma import CASES as GEMMA
from against_transformers.cases.gpt2 import CASES as GPT2
from against_transformers.cases.gpt_neox import CASES as GPT_NEOX
from against_transformers.cases.llama import CASES as LLAMA
from against_transformers.cases.mamba import CASES as MAMBA
from against_transformers.tiny import Case, rows, saved
from weft import api

FAMILIES = {"llama": LLAMA[0], "gpt2": GPT2[0], "gpt_neox": GPT_NEOX[0], "gemma": GEMMA[0], "mamba": MAMBA[0]}
TEMPLATE = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
OURS = {"architectures", "transformers_version", "dtype", "torch_dtype"}
"""Keys that say who wrote the file, and what it is made for."""


def folder_of(path: Path, case: Case) -> Path:
    """A model of the family with a tokenizer, its settings for generating and a chat template."""
    saved(case, path)
    vocabulary = {chr(97 + index) if index < 26 else f"<{index}>": index for index in range(67)}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<64>"))
    plain.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<64>", bos_token="<65>", eos_token="<66>",
                                   additional_special_tokens=["<63>"], model_max_length=64)
    made.chat_template = TEMPLATE
    made.save_pretrained(path)
    GenerationConfig(eos_token_id=[66, 63], bos_token_id=65, do_sample=True, temperature=0.6,
                     top_p=0.9).save_pretrained(path)
    return path


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_saved_folder_comes_back_whole(name: str, tmp_path: Path) -> None:
    source = folder_of(tmp_path / "source", FAMILIES[name])
    api.convert(source, tmp_path / "weft", to="weft")
    api.convert(tmp_path / "weft", tmp_path / "back", to="hf")
    for file in sorted(path.name for path in source.iterdir()):
        if file not in ("config.json", "model.safetensors"):
            assert (tmp_path / "back" / file).read_bytes() == (source / file).read_bytes(), file
    models_of = [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (source, tmp_path / "back")]
    theirs, ours = (model.config.to_dict() for model in models_of)
    if "n_inner" in theirs and theirs["n_inner"] is None:  # GPT-2's four widths, which Weft writes as a number
        theirs["n_inner"] = 4 * theirs["n_embd"]
    changed = {key: (value, ours.get(key)) for key, value in theirs.items()
               if key not in OURS | {"_name_or_path"} and value != ours.get(key)}
    assert changed == {}, "as transformers reads it, no key has another value"
    ids = torch.tensor([list(rows(67)[0])])
    assert torch.equal(*(model(ids).logits for model in models_of))
    assert models_of[1].generation_config.to_dict() == models_of[0].generation_config.to_dict()
