"""gpt-oss: experts of clamped gated units, attention with learned sinks, and a window in every second layer."""

from __future__ import annotations

from types import MappingProxyType

from weft.families.family import Family, Native
from weft.families.keys import Codec, Ignored, KeyProblem, KeyRule, Raw, Read, Together, words
from weft.families.known.llama import (
    ATTENTION,
    BIASED,
    LM_HEAD,
    TIED,
    attention_weights,
    decoder,
    outer_weights,
    shapes,
)
from weft.families.known.mixtral import COEFFICIENT, ROUTER_LOGITS, read_balance, write_balance
from weft.families.rope import Rotary
from weft.families.template import Fact, Facts
from weft.families.tensor_steps import TRANSPOSE, UNSTACK, split, ungroup
from weft.families.weights import Rule, both, rename
from weft.families.windows import windows_by_type

SINKS = ATTENTION | {"mask": Fact("masks", each=True), "sinks": True}
EXPERT = {"kind": "glu", "d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": True,
          "limit": Fact("limit"), "shift": 1.0}
EXPERTS = {"kind": "moe", "expert": EXPERT, "routing": {"bias": True}, "n_experts": Fact("n_experts"),
           "top_k": Fact("top_k"), "balance_loss": Fact("balance_loss"), "z_loss": 0.0}
YARN = MappingProxyType({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                         "original_max_position_embeddings": 4096})
"""The scaling of a configuration that names none."""

GAINS = words({1.702: "quick_gelu", 1.0: "silu"})
"""x sigmoid(a x), by its a."""

def write_limit(value: float | None) -> float:
    """The limit, which the class always has."""
    if value is None:
        raise KeyProblem("experts have no limit; its class cuts their factors off at one.")
    return value


LIMIT = Codec(write=write_limit)
ROTARY = Rotary(base=150000.0)


def read_rotary(raw: Raw, facts: Facts) -> Facts:
    """Rotary positions; YaRN where neither spelling is given."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling")
    return ROTARY.read(raw if given else {**raw, "rope_parameters": dict(YARN)}, facts)


KEYS: tuple[KeyRule, ...] = (
    *shapes(context=131072, d_ff=2880, n_kv_heads=8, vocab_size=201088, d_model=2880, d_head=64, n_layers=36,
            n_heads=64),
    Read("rms_norm_eps", "eps", float, 1e-5), Read("initializer_range", "std", float, 0.02),
    Read("attention_dropout", "attention_dropout", float, 0.0), TIED, Together(ROTARY.keys, read_rotary, ROTARY.write),
    Read("attention_bias", "attention_bias", bool, True, codec=BIASED), windows_by_type(128, 2),
    Read("num_local_experts", "n_experts", default=128, alias=("num_experts",)),
    Read("num_experts_per_tok", "top_k", default=4, old=("experts_per_token",)),
    Read("swiglu_alpha", "activation", float, 1.702, codec=GAINS),
    Read("swiglu_limit", "limit", float, 7.0, codec=LIMIT),
    Together((COEFFICIENT,), read_balance, write_balance),
    ROUTER_LOGITS,
    Ignored(("hidden_act",), "the class always computes x sigmoid(swiglu_alpha x), whatever it names"),
    Ignored(("initial_context_length",), "a copy of the original length of the rotary scaling"))


def expert_weights(facts: Facts) -> list[Rule]:
    """The router, and all experts of a layer in one tensor: gate and up in turns [N,D,2F], down [N,F,D]."""
    theirs, ours, experts = "model.layers.{layer}.mlp", "stack.layers.{layer}.layers.1", range(facts["n_experts"])
    turns = (ungroup(facts["d_ff"], (1, 1)), split((facts["d_ff"], facts["d_ff"])))

    def names(parts: tuple[str, ...], kind: str) -> tuple[str, ...]:
        return tuple(f"{ours}.experts.{n}.{part}.{kind}" for n in experts for part in parts)

    upper, lower = ("gate", "up"), ("down",)
    return [*both(f"{theirs}.router", f"{ours}.router"),
            Rule((f"{theirs}.experts.gate_up_proj",), names(upper, "weight"), (UNSTACK, TRANSPOSE, *turns)),
            Rule((f"{theirs}.experts.gate_up_proj_bias",), names(upper, "bias"), (UNSTACK, *turns)),
            Rule((f"{theirs}.experts.down_proj",), names(lower, "weight"), (UNSTACK, TRANSPOSE)),
            Rule((f"{theirs}.experts.down_proj_bias",), names(lower, "bias"), (UNSTACK,))]


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors."""
    return [*outer_weights(), *attention_weights(facts), *expert_weights(facts),
            rename("model.layers.{layer}.self_attn.sinks", "stack.layers.{layer}.layers.0.sinks")]


GPT_OSS = Family(
    name="gpt_oss", template=decoder(SINKS, EXPERTS), source="Agarwal et al. 2025 (arXiv:2508.10925), section 2",
    native=Native(model_type="gpt_oss", architecture="GptOssForCausalLM", architectures=("GptOssModel",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD))
