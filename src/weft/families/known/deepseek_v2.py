"""DeepSeek-V2 and V2-Lite: latent attention, and after the first layers many small experts beside some that every token
sees."""

from __future__ import annotations

import math
from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.llama import GLU, LM_HEAD, ROPE, TIED, VALUES, decoder, glu_weights, outer_weights
from weft.families.known.qwen import OURS, expert_weights, some_sparse, where_sparse
from weft.families.rope import Rotary
from weft.families.template import N_LAYERS, Fact, Facts
from weft.families.weights import Rule, both

LATENT = {"kind": "latent_attention", "n_heads": Fact("n_heads"), "d_latent": Fact("d_latent"),
          "d_query_latent": Fact("d_query_latent"), "d_nope": Fact("d_nope"), "d_rope": Fact("d_head"),
          "d_value": Fact("d_value"), "norm": {"kind": "rmsnorm", "eps": 1e-6}, "bias": Fact("attention_bias"),
          "position": ROPE, "scores": {"scale": Fact("scale"), "dropout": Fact("attention_dropout")}}
"""The norms of latents keep their class's own epsilon, whatever ``rms_norm_eps`` says."""

DENSE = GLU | {"bias": False}
EXPERTS = {"kind": "moe", "expert": DENSE | {"d_ff": Fact("d_expert")},
           "shared_expert": DENSE | {"d_ff": Fact("d_shared")}, "n_experts": Fact("n_experts"), "top_k": Fact("top_k"),
           "renormalise": Fact("renormalise"), "balance_loss": 0.0, "z_loss": 0.0}
ROUTING = {"n_expert_groups": Fact("groups"), "top_groups": Fact("top_groups"), "factor": Fact("factor")}

FIRST, SHARED, METHOD, HEADS = ("first_k_dense_replace", "n_shared_experts", "topk_method", "num_key_value_heads")
GREEDY, LIMITED = "greedy", "group_limited_greedy"


def read_heads(raw: Raw, facts: Facts) -> Facts:
    """Every head has keys and values of its own, made from the latent."""
    found = typed(HEADS, raw.get(HEADS), int)
    if found not in (None, facts["n_heads"]):
        raise KeyProblem(f"{HEADS}: {found}, but all {facts['n_heads']} heads read the one latent of a token.")
    return {}


def read_sparse(default: int) -> Any:
    """Which layers have experts: all but the first."""
    def read(raw: Raw, facts: Facts) -> Facts:
        first = typed(FIRST, raw.get(FIRST), int)
        first = default if first is None else first
        return {"sparse": [index >= first for index in range(facts[N_LAYERS])]}

    return read


def write_sparse(facts: Facts) -> dict[str, Any]:
    """The number of first layers without experts, which must be all that have none."""
    sparse = facts["sparse"]
    if not any(sparse):
        raise KeyProblem(f"{FIRST}: no layer has experts, so their number and sizes are not known.")
    if sparse != sorted(sparse):
        raise KeyProblem(f"{FIRST}: a layer without experts comes after one with experts.")
    return {FIRST: sparse.index(True)}


def read_shared(default: int) -> Any:
    """The shared experts, which side by side are one gated unit as wide as all of them."""
    def read(raw: Raw, facts: Facts) -> Facts:
        count = typed(SHARED, raw.get(SHARED, default), int)
        if not count or count < 1:
            raise KeyProblem(f"{SHARED}: {count}, but the class has at least one.")
        return {"d_shared": count * facts["d_expert"]}

    return read


def write_shared(facts: Facts) -> dict[str, Any]:
    """Their number."""
    count, left = divmod(facts["d_shared"], facts["d_expert"])
    if left:
        raise KeyProblem(f"{SHARED}: the shared expert is {facts['d_shared']} wide, no multiple of the others' "
                         f"{facts['d_expert']}.")
    return {SHARED: count}


def temperature(scaling: Any) -> float:
    """0.1 m ln(s) + 1 of a scaling, with the m of the denominator; 1 without it."""
    dim, factor = scaling.get("mscale_all_dim"), scaling.get("factor")
    return 0.1 * dim * math.log(factor) + 1 if dim and factor > 1 else 1.0


def own_scale(facts: Facts) -> float:
    """The scale of scores that the keys imply: with YaRN the square of its temperature comes on top."""
    return float((facts["d_nope"] + facts["d_head"]) ** -0.5) * temperature(facts["rope_scaling"]) ** 2


def read_scale(raw: Raw, facts: Facts) -> Facts:
    """The scale of scores; None for one over the root of the size."""
    given = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if given.get("mscale_all_dim") and not facts["rope_scaling"].get("mscale_all_dim"):
        raise KeyProblem("rope_parameters: mscale_all_dim without mscale, or beside attention_factor, changes scores "
                         "and rotations by different amounts; no released model has it.")
    return {"scale": None if temperature(facts["rope_scaling"]) == 1.0 else own_scale(facts)}


def write_scale(facts: Facts) -> dict[str, Any]:
    """Nothing, where it is the implied one."""
    implied = own_scale(facts)
    scale = (facts["d_nope"] + facts["d_head"]) ** -0.5 if facts["scale"] is None else facts["scale"]
    if abs(scale - implied) > 1e-12 * implied:
        raise KeyProblem(f"rope_parameters: scores are multiplied by {scale}, and the keys imply {implied}.")
    return {}


def read_groups(raw: Raw, facts: Facts) -> Facts:
    """Groups of experts, which only one of the methods has."""
    method = raw.get(METHOD) or GREEDY
    if method not in (GREEDY, LIMITED):
        raise KeyProblem(f"{METHOD}: {method!r}, but only {GREEDY!r} or {LIMITED!r} can be read.")
    if method == GREEDY:
        return {"groups": 1, "top_groups": None}
    found = {fact: typed(key, raw.get(key), int) for fact, key in (("groups", "n_group"), ("top_groups", "topk_group"))}
    if None in found.values():
        raise KeyProblem(f"{METHOD}: {LIMITED!r} needs n_group and topk_group.")
    return {"groups": 1, "top_groups": None} if found["groups"] == found["top_groups"] else found


def write_groups(facts: Facts) -> dict[str, Any]:
    """The method, and the numbers of groups; it makes no difference what groups are where all are open."""
    groups, opened = facts["groups"], facts["top_groups"]
    if opened in (None, groups):
        return {METHOD: GREEDY, "n_group": 1, "topk_group": 1}
    return {METHOD: LIMITED, "n_group": groups, "topk_group": opened}


def latent_keys(*, q_latent: int | None, context: int, vocab_size: int, d_model: int, d_ff: int, n_layers: int,
                n_heads: int) -> tuple[KeyRule, ...]:
    """The keys of sizes and of attention, with the defaults of `transformers`."""
    width = Read("intermediate_size", "d_ff", default=d_ff)
    return (
        Read("vocab_size", "vocab_size", default=vocab_size), Read("hidden_size", "d_model", default=d_model),
        Together(width.keys, width.read, lambda facts: width.write(facts) if "d_ff" in facts else {}),
        Read("num_hidden_layers", "n_layers", default=n_layers),
        Read("num_attention_heads", "n_heads", default=n_heads),
        Together((HEADS,), read_heads, lambda facts: {HEADS: facts["n_heads"]}),
        Read("max_position_embeddings", "context", default=context), *VALUES, TIED,
        Read("attention_bias", "attention_bias", bool, False), Read("kv_lora_rank", "d_latent", default=512),
        Read("q_lora_rank", "d_query_latent", default=q_latent, null=True),
        Read("qk_nope_head_dim", "d_nope", default=128), Read("qk_rope_head_dim", "d_head", default=64),
        Read("v_head_dim", "d_value", default=128), Rotary(layout="interleaved"),
        Together((), read_scale, write_scale),
        Ignored(("head_dim", "qk_head_dim"), "the class computes them from qk_nope_head_dim and qk_rope_head_dim"))


def expert_keys(*, first: int, shared: int, n_experts: int, d_expert: int, factor: float,
                top_k: KeyRule) -> tuple[KeyRule, ...]:
    """The keys of experts and of which layers have them."""
    rules = (Read("moe_intermediate_size", "d_expert", default=d_expert), top_k,
             Read("n_routed_experts", "n_experts", default=n_experts, alias=("num_experts", "num_local_experts")),
             Together((SHARED,), read_shared(shared), write_shared),
             Read("routed_scaling_factor", "factor", float, factor))
    return (Together((FIRST,), read_sparse(first), write_sparse), *map(where_sparse, rules),
            Fixed("moe_layer_freq", (1, None), why="Every layer after the first ones has experts."),
            Ignored(("aux_loss_alpha", "seq_aux"), "a balancing loss within each sequence in training, which Weft does "
                    "not add; outputs are the same.", notify=True),
            Ignored(("ep_size", "output_router_logits"), "how the released code runs experts, and what it returns"))


def weights(facts: Facts) -> list[Rule]:
    """Attention's maps under other names, the experts, and the shared ones, which the file holds as one."""
    theirs, ours = "model.layers.{layer}.self_attn", "stack.layers.{layer}.layers.0"
    names = {"q_proj": "query", "q_a_proj": "query_down", "q_a_layernorm": "query_norm", "q_b_proj": "query_up",
             "kv_a_proj_with_mqa": "latent_down", "kv_a_layernorm": "latent_norm", "kv_b_proj": "latent_up",
             "o_proj": "output"}
    shared = "model.layers.{layer}.mlp.shared_experts"
    return [*outer_weights(), *glu_weights(), *expert_weights(facts),
            *(rule for a, b in names.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}")),
            *(rule for name in ("gate", "up", "down")
              for rule in both(f"{shared}.{name}_proj", f"{OURS}.shared.{name}"))]


DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    template=decoder(LATENT | {"position": ROPE | {"layout": "interleaved"}}, some_sparse(
        EXPERTS | {"renormalise": False, "routing": ROUTING})),
    source="DeepSeek-AI 2024 (arXiv:2405.04434), sections 2.1 and 2.2",
    native=Native(
        model_type="deepseek_v2", architecture="DeepseekV2ForCausalLM", architectures=("DeepseekV2Model",),
        keys=(*latent_keys(q_latent=1536, context=2048, vocab_size=102400, d_model=4096, d_ff=11008, n_layers=32,
                           n_heads=32),
              *expert_keys(first=0, shared=2, n_experts=64, d_expert=1407, factor=1.0,
                           top_k=Read("num_experts_per_tok", "top_k")),
              where_sparse(Together((METHOD, "n_group", "topk_group"), read_groups, write_groups)),
              Fixed("norm_topk_prob", (False, None), default=False, why="With it the released code divides gates by "
                    "their sum and does not scale them, and transformers ignores it."),
              Fixed("scoring_func", ("softmax", None), why="Gates are a softmax."),
              Fixed("mlp_bias", (False, None), default=False, why="Experts have none, and no released model has.")),
        weights=weights, prefix="model.", tied=LM_HEAD))
