"""Adapters that `peft` wrote, read here, and ours opened by `peft`: the same logits in float64 to 1e-10 and in float32
to 1e-5, on families that store queries, keys and values together or apart, transposed, or by groups."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

import weft
from weft.checkpoints import save_checkpoint
from weft.core.config import parse_part
from weft.linear.low_rank import Adapted, LowRankParts
from weft.linear.rewrite import rewritten

SIZES = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 32, "pad_token_id": 0}
GROUPED = {**SIZES, "num_key_value_heads": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", GROUPED),
    "tied": ("LlamaConfig", {**GROUPED, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2Config", GROUPED),
    "gemma2": ("Gemma2Config", {**GROUPED, "head_dim": 6}),
    "phi3": ("Phi3Config", GROUPED),
    "gpt_neox": ("GPTNeoXConfig", SIZES),
    "gpt2": ("GPT2Config", {"vocab_size": 40, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 4}),
    "bloom": ("BloomConfig", {"vocab_size": 40, "hidden_size": 24, "n_layer": 2, "n_head": 4}),
    "falcon": ("FalconConfig", {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
                                "num_kv_heads": 2, "new_decoder_architecture": True}),
    "mamba": ("MambaConfig", {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 4}),
}
ATTENTION = {"phi3": ["qkv_proj"], "gpt_neox": ["query_key_value"], "gpt2": ["c_attn"], "bloom": ["query_key_value"],
             "falcon": ["query_key_value"], "mamba": ["in_proj"]}
WAYS: dict[str, dict[str, Any]] = {
    "attention": {}, "all": {"target_modules": "all-linear"},
    "rslora": {"use_rslora": True}, "dora": {"use_dora": True, "target_modules": "all-linear"},
    "one layer": {"layers_to_transform": [1]},
    "patterns": {"target_modules": "all-linear", "rank_pattern": {"layers.1.*": 2, "h.0.*": 1},
                 "alpha_pattern": {".*proj": 5, "c_attn": 3}},
    "readout": {"target_modules": ["lm_head"]}}
TOKENS = torch.randint(1, 40, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", params=FAMILIES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    torch.manual_seed(0)
    kind, values = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**values)).save_pretrained(folder)
    return request.param, folder


def opened(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def random(model: Any) -> Any:
    """With random adapters, the same in any order of tests: B begins at zero, and lengths at those of the rows."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))
            elif "lora_A" in name:
                p.copy_(torch.randn(p.shape, generator=generator) / math.sqrt(3 * p[0].numel()))
            elif "magnitude" in name:
                p.mul_(1 + 0.3 * torch.randn(p.shape, generator=generator))
    return model.eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS).logits
    return found


def ours(loaded: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = loaded.model(TOKENS).y
    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_peft_wrote_is_read_and_written_again(base: tuple[str, Path], way: str, tmp_path: Path) -> None:
    family, folder = base
    settings = {"r": 4, "lora_alpha": 6, "target_modules": ATTENTION.get(family, ["q_proj", "v_proj"]), **WAYS[way]}
    if family == "falcon" and way == "one layer":
        settings["layers_pattern"] = "h"
    if family == "mamba" and settings["target_modules"] == "all-linear":
        settings["target_modules"] = ["in_proj", "x_proj"]  # peft refuses the others
    if family == "gpt_neox" and way == "readout":
        settings["target_modules"] = ["dense"]  # its readout has another name in files than in transformers 5
    theirs = random(peft.get_peft_model(opened(folder), peft.LoraConfig(task_type="CAUSAL_LM", **settings)))
    theirs.save_pretrained(tmp_path / "peft", save_embedding_layers=False)  # for a readout it would save its base too
    wanted = logits(theirs)
    assert float((wanted - logits(opened(folder))).abs().max()) > 1e-2 * float(wanted.abs().max())
    found = weft.load(tmp_path / "peft", base=str(folder))
    assert any(isinstance(each, Adapted) for each in found.model.modules())
    if family == "llama" and way == "attention":
        assert isinstance(found.model.stack.layers[0].layers[0].qkv, LowRankParts)
    largest = float(wanted.abs().max())
    assert float((ours(found) - wanted).abs().max()) < 1e-5 * largest
    theirs.double()
    exact = weft.load(tmp_path / "peft", base=str(folder), dtype="float64")
    # Tables of rotations stay in float32 there.
    assert float((ours(exact) - logits(theirs)).abs().max()) < 1e-6 * largest
    written = weft.convert(tmp_path / "peft", tmp_path / "again", to="peft", base=str(folder))
    assert written.difference <= 1e-5 * largest
    again = peft.PeftModel.from_pretrained(opened(folder), tmp_path / "again").eval()
    assert float((logits(again) - wanted).abs().max()) < 1e-5 * largest
    merged = weft.convert(tmp_path / "peft", tmp_path / "merged", to="hf", base=str(folder)) if way != "readout" or (
        family not in ("tied", "gpt2", "bloom", "gemma2", "falcon", "mamba")) else None
    if merged is not None:
        assert float((logits(opened(tmp_path / "merged")) - wanted).abs().max()) < 1e-4 * largest


@pytest.mark.parametrize("rewrite", [
    {"maps": ["qkv"]}, {"maps": ["qkv.q", "v"], "ranks": {"v": 3}}, {}, {"dora": True, "kinds": ["feed-forward"]},
    {"rank_stabilised": True, "maps": ["down", "readout"], "alphas": {"down": 7.0}}])
def test_ours_opens_in_peft(rewrite: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**GROUPED)).save_pretrained(tmp_path / "b")
    base = weft.load(tmp_path / "b")
    config = base.config.model_copy(update={"rewrites": [parse_part(("rewrite",), {
        "kind": "lora", "rank": 2, "alpha": 3.0, **rewrite})]})
    adapted = rewritten(base.model, config.rewrites)
    adapted.config = config
    for module in adapted.modules():
        if isinstance(module, Adapted):
            module.perturb(torch.Generator().manual_seed(2))
    save_checkpoint(tmp_path / "a", adapted.eval(), None)
    found = weft.convert(tmp_path / "a", tmp_path / "peft", to="peft", base=str(tmp_path / "b"))
    wanted = ours(weft.load(tmp_path / "a"))
    theirs = peft.PeftModel.from_pretrained(opened(tmp_path / "b"), tmp_path / "peft").eval()
    assert found.difference < 1e-5 * float(wanted.abs().max())
    assert float((logits(theirs) - wanted).abs().max()) < 1e-5 * float(wanted.abs().max())
    assert set(json.loads((tmp_path / "peft/adapter_config.json").read_text())) <= set(vars(peft.LoraConfig()))


def test_a_step_of_training_is_peft_s(tmp_path: Path) -> None:
    """Gradients of the same loss, through queries and values alone, with DoRA: A, B and m."""
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**GROUPED)).save_pretrained(tmp_path / "b")
    settings = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj"], use_dora=True)
    theirs = random(peft.get_peft_model(opened(tmp_path / "b"), settings))
    theirs.save_pretrained(tmp_path / "peft")
    theirs.double()
    found = weft.load(tmp_path / "peft", base=str(tmp_path / "b"), dtype="float64")
    theirs(TOKENS).logits.log_softmax(-1)[..., 3].sum().backward()
    found.model(TOKENS).y.log_softmax(-1)[..., 3].sum().backward()
    for layer in range(2):
        term = found.model.stack.layers[layer].layers[0].qkv.terms()["v"]
        other = theirs.base_model.model.model.layers[layer].self_attn.v_proj
        pairs = ((term.a.weight, other.lora_A.default.weight), (term.b.weight, other.lora_B.default.weight),
                 (term.magnitude, other.lora_magnitude_vector.default.weight))
        for mine, his in pairs:
            # Tables of rotations stay in float32 there.
            torch.testing.assert_close(mine.grad, his.grad, rtol=0, atol=1e-6 * float(his.grad.abs().max()))
