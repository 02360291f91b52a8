"""Files of GPT, GPT-Neo, GPT-J, OPT, BLOOM, MPT and Phi as they are found: bare models, junk, old keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from against_transformers.cases.bloom import CASES as BLOOM
from against_transformers.cases.gpt_neo import CASES as GPT_NEO
from against_transformers.cases.gptj import CASES as GPTJ
from against_transformers.cases.mpt import CASES as MPT
from against_transformers.cases.openai_gpt import CASES as OPENAI_GPT
from against_transformers.cases.opt import CASES as OPT
from against_transformers.cases.phi import CASES as PHI
from against_transformers.tiny import TOLERANCE, Case, alone, rows, saved
from weft import api
from weft.checkpoints import save_checkpoint
from weft.core.config import parse_part
from weft.core.model import ModelConfig
from weft.interop.huggingface.writing import fit

FILE = "model.safetensors"
MASK = torch.full((1, 1, 4, 4), float("nan"))
OLD_NEO: dict[str, Any] = {"attention_layers": None, "gradient_checkpointing": False}
OLD_J: dict[str, Any] = {"rotary": True, "scale_attn_weights": True, "n_ctx": 48}
OLD_OPT: dict[str, Any] = {"activation_dropout": 0.0, "prefix": "</s>"}
OLD_BLOOM: dict[str, Any] = {"attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "n_inner": None,
                             "masked_softmax_fusion": True, "offset_alibi": 100, "skip_bias_add": True,
                             "skip_bias_add_qkv": False, "unk_token_id": 0, "pretraining_tp": 4, "n_embed": 35}
OLD_MPT: dict[str, Any] = {"architectures": ["MPTForCausalLM"], "init_config": {"name": "kaiming_normal_"},
                           "verbose": 0, "tokenizer_name": "EleutherAI/gpt-neox-20b",
                           "auto_map": {"AutoConfig": "code.Config"}}
OLD_GPT: dict[str, Any] = {"n_ctx": 48, "n_special": 0, "predict_special_tokens": True}
OLD_PHI: dict[str, Any] = {"rope_parameters": None, "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                           "rope_scaling": None}


@pytest.mark.parametrize(("case", "prefix", "junk", "old"), [
    (GPTJ[0], "", ("transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"), OLD_J),
    (GPTJ[2], "transformer.", ("h.0.attn.bias", "h.0.attn.embed_positions"), {}),
    (GPT_NEO[0], "transformer.", ("h.2.attn.attention.bias", "h.2.attn.attention.masked_bias"), OLD_NEO),
    (OPT[1], "model.", ("decoder.version",), OLD_OPT), (BLOOM[0], "transformer.", (), OLD_BLOOM),
    (MPT[0], "transformer.", (), OLD_MPT), (PHI[0], "", ("model.layers.0.self_attn.rotary_emb.inv_freq",), OLD_PHI),
    (OPENAI_GPT[0], "transformer.", ("h.0.attn.bias", "position_ids"), OLD_GPT)],
    ids=lambda value: getattr(value, "name", ""))
def test_bare_models_junk_and_old_keys(case: Case, prefix: str, junk: tuple[str, ...], old: dict[str, Any],
                                       tmp_path: Path) -> None:
    saved(case, tmp_path)
    wanted, config = [alone(tmp_path, row) for row in rows(67)], api.load(tmp_path).config
    raw = {**json.loads((tmp_path / "config.json").read_text()), **old}
    (tmp_path / "config.json").write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))
    tensors: dict[str, Tensor] = {name.removeprefix(prefix): tensor for name, tensor in
                                  load_file(tmp_path / FILE).items()}
    save_file({**tensors, **{name: MASK.clone() for name in junk}}, tmp_path / FILE, metadata={"format": "pt"})
    assert api.load(tmp_path).config == config
    found = api.score(tmp_path, rows(67), logits=True).logits
    assert found is not None
    for own, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", [GPTJ[0], GPT_NEO[0], OPT[1], BLOOM[1], MPT[1], PHI[2], OPENAI_GPT[0]],
                         ids=lambda case: case.name)
def test_the_laws_hold_on_such_a_folder(case: Case, tmp_path: Path) -> None:
    saved(case, tmp_path)
    assert api.check(tmp_path).holds


@pytest.mark.parametrize(("case", "layout"), [(GPTJ[0], "half_split"), (PHI[2], "interleaved")],
                         ids=["gptj", "phi, normed"])
def test_models_with_the_other_order_of_rotary_pairs_are_written(case: Case, layout: str, tmp_path: Path) -> None:
    """Weft's own layout may differ from the family's: rows are moved, and the logits stay."""
    saved(case, tmp_path / "theirs")
    data = api.load(tmp_path / "theirs").config.dump()
    text = json.dumps(data).replace('"layout": "interleaved"', f'"layout": "{layout}"').replace(
        '"layout": "half_split"', f'"layout": "{layout}"')
    config = parse_part(("model",), json.loads(text))
    assert isinstance(config, ModelConfig)
    fitted = fit(config, {}, family=case.name.split("-")[0])
    assert fitted.facts["layout"] == layout
    save_checkpoint(tmp_path / "ours", config.build(), None)
    done = api.convert(tmp_path / "ours", tmp_path / "back", to="hf")
    assert done.foreign is not None
    assert done.foreign < TOLERANCE
