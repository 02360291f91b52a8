"""Qwen 1.5, 2 and 2.5: Llama's format with biases on queries, keys and values, and windows on some layers. Qwen 3: a
norm on each head's queries and keys before the rotation, and no biases. Both with experts, of which a router chooses
some: beside those of Qwen 1.5 and 2 stands a gated one that every token sees."""

from __future__ import annotations

from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed, words
from weft.families.known.llama import (
    ATTENTION,
    BIASED,
    GLU,
    LM_HEAD,
    RMS_NORM,
    TIED,
    VALUES,
    attention_weights,
    decoder,
    glu_weights,
    outer_weights,
    shapes,
    weights,
)
from weft.families.known.mixtral import COEFFICIENT, ROUTER_LOGITS
from weft.families.rope import Rotary
from weft.families.template import N_LAYERS, Fact, Facts, TemplateChoice
from weft.families.weights import Rule, rename
from weft.families.windows import mask_of, window_of, windows_by_layer

WINDOWED = ATTENTION | {"mask": Fact("masks", each=True)}
KEYS: tuple[KeyRule, ...] = (*shapes(context=32768, d_ff=22016, n_kv_heads=None, vocab_size=151936), *VALUES, TIED,
                             Rotary(), windows_by_layer())


QWEN2 = Family(
    name="qwen2", template=decoder(WINDOWED | {"bias": "qkv"}, GLU | {"bias": False}),
    source="Yang et al. 2024 (arXiv:2407.10671); Qwen Team 2024 (arXiv:2412.15115)",
    native=Native(model_type="qwen2", architecture="Qwen2ForCausalLM", architectures=("Qwen2Model",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD))


def normed_weights(facts: Facts) -> list[Rule]:
    """Return the rules of Llama's tensors and of the norms of queries and keys."""
    return [*outer_weights(), *attention_weights(facts, normed=True), *glu_weights()]


QWEN3 = Family(
    name="qwen3", template=decoder(WINDOWED | {"qk_norm": RMS_NORM}, GLU | {"bias": False}),
    source="Yang et al. 2025 (arXiv:2505.09388)",
    native=Native(
        model_type="qwen3", architecture="Qwen3ForCausalLM", architectures=("Qwen3Model",),
        keys=(*shapes(context=32768, d_ff=22016, n_kv_heads=32, vocab_size=151936, d_head=128), *VALUES, TIED,
              Rotary(), windows_by_layer(), Read("attention_bias", "attention_bias", bool, False, codec=BIASED)),
        weights=normed_weights, prefix="model.", tied=LM_HEAD))


EXPERTS = {"kind": "moe", "expert": GLU | {"bias": False, "d_ff": Fact("d_expert")}, "n_experts": Fact("n_experts"),
           "top_k": Fact("top_k"), "renormalise": Fact("renormalise"), "balance_loss": Fact("balance_loss"),
           "z_loss": 0.0}
OURS, STEP, DENSE = "stack.layers.{layer}.layers.1", "decoder_sparse_step", "mlp_only_layers"


def some_sparse(experts: object) -> TemplateChoice:
    """A layer's feed-forward: experts, or one gated unit."""
    return TemplateChoice("sparse", {True: experts, False: GLU | {"bias": False}}, each=True)


def read_sparse(raw: Raw, facts: Facts) -> Facts:
    """Which layers have experts: every ``decoder_sparse_step``-th, but none of ``mlp_only_layers``."""
    step, dense = typed(STEP, raw.get(STEP), int), typed(DENSE, raw.get(DENSE), list) or []
    step = 1 if step is None else step
    if step < 1:
        raise KeyProblem(f"{STEP}: {step}, but it counts layers from one with experts to the next.")
    return {"sparse": [(index + 1) % step == 0 and index not in dense for index in range(facts[N_LAYERS])]}


def write_sparse(facts: Facts) -> dict[str, Any]:
    """The layers without experts, one by one."""
    if not any(facts["sparse"]):
        raise KeyProblem(f"{DENSE}: no layer has experts, so their number and sizes are not known.")
    return {STEP: 1, DENSE: [index for index, sparse in enumerate(facts["sparse"]) if not sparse]}


def where_sparse(rule: KeyRule) -> KeyRule:
    """A rule about experts, which writes nothing where no layer has any; `write_sparse` refuses that."""
    return Together(rule.keys, rule.read, lambda facts: rule.write(facts) if any(facts["sparse"]) else {})


def read_balance(raw: Raw, facts: Facts) -> Facts:
    """Each layer's coefficient; see `weft.families.known.mixtral`. Layers without experts have no such loss."""
    coefficient = typed(COEFFICIENT, raw.get(COEFFICIENT), float)
    share = facts["top_k"] / max(sum(facts["sparse"]), 1)
    return {"balance_loss": (0.001 if coefficient is None else coefficient) * share}


def write_balance(facts: Facts) -> dict[str, Any]:
    """The inverse, rounded, since the round trip changes the last bits."""
    return {COEFFICIENT: float(f"{facts['balance_loss'] * sum(facts['sparse']) / facts['top_k']:.12g}")}


def sizes(rules: tuple[KeyRule, ...], d_ff: int) -> tuple[KeyRule, ...]:
    """The keys of sizes; where all layers have experts, the width of the others is not written."""
    def write(facts: Facts) -> dict[str, Any]:
        return {"intermediate_size": facts["d_ff"]} if "d_ff" in facts else {}

    width = Read("intermediate_size", "d_ff", default=d_ff)
    return (*(rule for rule in rules if "intermediate_size" not in rule.keys),
            Together(width.keys, width.read, write), Together((STEP, DENSE), read_sparse, write_sparse))


def experts(d_expert: int, n_experts: int, top_k: int, *, renormalise: bool = False) -> tuple[KeyRule, ...]:
    """The keys of experts, with their defaults."""
    rules = (Read("moe_intermediate_size", "d_expert", default=d_expert),
             Read("num_experts", "n_experts", default=n_experts, old=("num_local_experts",)),
             Read("num_experts_per_tok", "top_k", default=top_k),
             Read("norm_topk_prob", "renormalise", bool, renormalise),
             Together((COEFFICIENT,), read_balance, write_balance))
    return (*map(where_sparse, rules), ROUTER_LOGITS)


def expert_weights(facts: Facts) -> list[Rule]:
    """The router, and the three matrices of every expert."""
    theirs = "model.layers.{layer}.mlp"
    return [rename(f"{theirs}.gate.weight", f"{OURS}.router.weight"),
            *(rename(f"{theirs}.experts.{n}.{name}_proj.weight", f"{OURS}.experts.{n}.{name}.weight")
              for n in range(facts.get("n_experts", 0)) for name in ("gate", "up", "down"))]


def sparse_weights(facts: Facts) -> list[Rule]:
    """Qwen 3's, and the experts of the layers that have them."""
    return [*outer_weights(), *attention_weights(facts, normed=True), *glu_weights(), *expert_weights(facts)]


def read_window(raw: Raw, facts: Facts) -> Facts:
    """One window for all layers, if it is switched on."""
    used = typed("use_sliding_window", raw.get("use_sliding_window", False), bool)
    return {"mask": mask_of(typed("sliding_window", raw.get("sliding_window", 4096), int) if used else None)}


def write_window(facts: Facts) -> dict[str, Any]:
    """The window and its switch."""
    window = window_of(facts["mask"])
    return {"use_sliding_window": window is not None, "sliding_window": window}


QWEN3_MOE = Family(
    name="qwen3_moe",
    template=decoder(ATTENTION | {"mask": Fact("mask"), "qk_norm": RMS_NORM}, some_sparse(EXPERTS)),
    source="Yang et al. 2025 (arXiv:2505.09388), section 2",
    native=Native(
        model_type="qwen3_moe", architecture="Qwen3MoeForCausalLM", architectures=("Qwen3MoeModel",),
        keys=(*sizes(shapes(context=32768, d_ff=6144, n_kv_heads=4, vocab_size=151936, d_model=2048, n_layers=24),
                     6144),
              *VALUES, TIED, Rotary(), Together(("use_sliding_window", "sliding_window"), read_window, write_window),
              Read("attention_bias", "attention_bias", bool, False, codec=BIASED), *experts(768, 128, 8),
              Fixed("use_qk_norm", (None, True), why="The class of transformers norms queries and keys always."),
              Fixed("qkv_bias", (None, False), why="The class of transformers has no biases of its own for these."),
              Ignored(("max_window_layers",), "not used: in the class of transformers all layers have one window")),
        weights=sparse_weights, prefix="model.", tied=LM_HEAD))


SHARED = {"shared_expert": GLU | {"bias": False, "d_ff": Fact("d_shared")}, "shared_gate": True}


def shared_weights(facts: Facts) -> list[Rule]:
    """Qwen 2's, the experts, and the one that every token sees with its gate."""
    theirs = "model.layers.{layer}.mlp"
    return [*outer_weights(), *attention_weights(facts), *glu_weights(), *expert_weights(facts),
            rename(f"{theirs}.shared_expert_gate.weight", f"{OURS}.shared_gate.weight"),
            *(rename(f"{theirs}.shared_expert.{name}_proj.weight", f"{OURS}.shared.{name}.weight")
              for name in ("gate", "up", "down"))]


QWEN2_MOE = Family(
    name="qwen2_moe", template=decoder(WINDOWED, some_sparse(EXPERTS | SHARED)),
    source="Yang et al. 2024 (arXiv:2407.10671), section 2.2.2",
    native=Native(
        model_type="qwen2_moe", architecture="Qwen2MoeForCausalLM", architectures=("Qwen2MoeModel",),
        keys=(*sizes(shapes(context=32768, d_ff=5632, n_kv_heads=16, vocab_size=151936, d_model=2048, n_layers=24,
                            n_heads=16), 5632),
              *VALUES, TIED, Rotary(),
              windows_by_layer(slides=lambda index, first: index % 2 == 0 and index < first),
              Read("qkv_bias", "attention_bias", bool, True, codec=words({True: "qkv", False: "none"})),
              *experts(1408, 60, 4),
              where_sparse(Read("shared_expert_intermediate_size", "d_shared", default=5632))),
        weights=shared_weights, prefix="model.", tied=LM_HEAD))
