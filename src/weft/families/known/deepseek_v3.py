"""DeepSeek-V3 and R1: V2's attention, and experts chosen by sigmoids with a correction that training moves."""

from __future__ import annotations

from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, Raw, Read, Together, typed
from weft.families.known.deepseek_v2 import EXPERTS, LATENT, ROUTING, expert_keys, latent_keys, weights
from weft.families.known.llama import LM_HEAD, decoder
from weft.families.known.qwen import OURS, some_sparse, where_sparse
from weft.families.template import Facts
from weft.families.weights import Rule, UnusedTensors, rename

INTERLEAVE = "rope_interleave"
FURTHER = ("num_nextn_predict_layers", "num_mtp_layers")


def read_layout(raw: Raw, facts: Facts) -> Facts:
    """Which features make a pair; the files that Hugging Face's class was written for have neighbours."""
    neighbours = typed(INTERLEAVE, raw.get(INTERLEAVE, True), bool)
    return {"layout": "interleaved" if neighbours else "half_split"}


def corrected(facts: Facts) -> list[Rule]:
    """V2's tensors, and the correction of each router."""
    return [*weights(facts), rename("model.layers.{layer}.mlp.gate.e_score_correction_bias", f"{OURS}.correction")]


def no_further_layers(facts: Facts) -> dict[str, Any]:
    """The class would otherwise announce a layer that predicts one more token."""
    return {FURTHER[0]: 0}


def write_groups(facts: Facts) -> dict[str, Any]:
    """The numbers of groups."""
    opened = facts["groups"] if facts["top_groups"] is None else facts["top_groups"]
    return {"n_group": facts["groups"], "topk_group": opened}


def read_groups(raw: Raw, facts: Facts) -> Facts:
    """The numbers of groups; the class has defaults for both."""
    groups, opened = (typed(key, raw.get(key, default), int) for key, default in (("n_group", 8), ("topk_group", 4)))
    return {"groups": 1 if groups is None else groups, "top_groups": opened}


DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    template=decoder(LATENT, some_sparse(EXPERTS | {"routing": ROUTING | {
        "score_function": "sigmoid", "group_score": "best_two", "correction": True}})),
    source="DeepSeek-AI 2024 (arXiv:2412.19437), section 2.1",
    native=Native(
        model_type="deepseek_v3", architecture="DeepseekV3ForCausalLM", architectures=("DeepseekV3Model",),
        keys=(*latent_keys(q_latent=1536, context=4096, vocab_size=129280, d_model=7168, d_ff=18432, n_layers=61,
                           n_heads=128),
              Together((INTERLEAVE,), read_layout, lambda facts: {INTERLEAVE: facts["layout"] == "interleaved"}),
              *expert_keys(first=3, shared=1, n_experts=256, d_expert=2048, factor=2.5,
                           top_k=Read("num_experts_per_tok", "top_k", default=8)),
              where_sparse(Read("norm_topk_prob", "renormalise", bool, True)),
              where_sparse(Together(("n_group", "topk_group"), read_groups, write_groups)),
              Fixed("scoring_func", ("sigmoid", None), why="The class takes sigmoids."),
              Fixed("topk_method", ("noaux_tc", None), why="The class chooses with a correction."),
              Ignored(FURTHER, "layers that predict further tokens in training or speculation, which are left out; "
                      "the next token is predicted without them.", notify=True),
              Together((), lambda raw, facts: {}, no_further_layers)),
        weights=corrected, prefix="model.", tied=LM_HEAD,
        junk=(UnusedTensors(r"model\.layers\.61\..*",
                            "the layer that predicts one token more, after the 61 of the model"),)))
