"""Mixtral: Mistral's attention, and in every layer experts of which a router chooses some for each token."""

from __future__ import annotations

from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Ignored, Read, Together, typed
from weft.families.known.llama import (
    ATTENTION,
    GLU,
    LM_HEAD,
    TIED,
    VALUES,
    attention_weights,
    decoder,
    outer_weights,
    shapes,
)
from weft.families.rope import Rotary
from weft.families.template import N_LAYERS, Fact, Facts
from weft.families.tensor_steps import UNSTACK, split
from weft.families.weights import Rule, rename
from weft.families.windows import one_window

EXPERTS = {"kind": "moe", "expert": GLU | {"bias": False}, "n_experts": Fact("n_experts"), "top_k": Fact("top_k"),
           "balance_loss": Fact("balance_loss"), "z_loss": 0.0}
OURS = "stack.layers.{layer}.layers.1"
COEFFICIENT = "router_aux_loss_coef"
ROUTER_LOGITS = Ignored(
    ("output_router_logits",), "whether transformers returns the router's logits and trains with the balancing loss; "
    "Weft trains with the loss wherever its coefficient is not 0")


def read_balance(raw: Any, facts: Facts) -> Facts:
    """The coefficient of each layer's own loss.

    `transformers` counts choices per token, of which there are k, and pools all layers into one loss; Weft counts
    shares of all choices and adds the losses of L layers. One is k/L times the other where layers choose alike.
    """
    coefficient = typed(COEFFICIENT, raw.get(COEFFICIENT), float)
    return {"balance_loss": (0.001 if coefficient is None else coefficient) * facts["top_k"] / facts[N_LAYERS]}


def write_balance(facts: Facts) -> dict[str, Any]:
    """The inverse, rounded, since the round trip changes the last bits."""
    return {COEFFICIENT: float(f"{facts['balance_loss'] * facts[N_LAYERS] / facts['top_k']:.12g}")}


def weights(facts: Facts) -> list[Rule]:
    """The three matrices of every expert, separately: w1 is the gate, w3 up, w2 down."""
    theirs = "model.layers.{layer}.block_sparse_moe"
    names = {"w1": "gate", "w3": "up", "w2": "down"}
    return [*outer_weights(), *attention_weights(facts), rename(f"{theirs}.gate.weight", f"{OURS}.router.weight"),
            *(rename(f"{theirs}.experts.{n}.{a}.weight", f"{OURS}.experts.{n}.{b}.weight")
              for n in range(facts["n_experts"]) for a, b in names.items())]


def stacked_weights(facts: Facts) -> list[Rule]:
    """All experts of a layer in one tensor, as `transformers` 5 holds them in memory: gate above up [N,2F,D], down
    [N,D,F]."""
    theirs, experts = "model.layers.{layer}.mlp", range(facts["n_experts"])
    upper = tuple(f"{OURS}.experts.{n}.{name}.weight" for n in experts for name in ("gate", "up"))
    lower = tuple(f"{OURS}.experts.{n}.down.weight" for n in experts)
    return [*outer_weights(), *attention_weights(facts), rename(f"{theirs}.gate.weight", f"{OURS}.router.weight"),
            Rule((f"{theirs}.experts.gate_up_proj",), upper, (UNSTACK, split((facts["d_ff"], facts["d_ff"])))),
            Rule((f"{theirs}.experts.down_proj",), lower, (UNSTACK,))]


MIXTRAL = Family(
    name="mixtral", template=decoder(ATTENTION | {"bias": "none", "mask": Fact("mask")}, EXPERTS),
    source="Jiang et al. 2024 (arXiv:2401.04088), section 2",
    native=Native(
        model_type="mixtral", architecture="MixtralForCausalLM", architectures=("MixtralModel",),
        keys=(*shapes(context=4096 * 32, d_ff=14336, n_kv_heads=8),
              *(rule for rule in VALUES if "rms_norm_eps" not in rule.keys), Read("rms_norm_eps", "eps", float, 1e-5),
              TIED, Rotary(base=1e6), one_window(None),
              Read("num_local_experts", "n_experts", default=8, alias=("num_experts",)),
              Read("num_experts_per_tok", "top_k", default=2), Together((COEFFICIENT,), read_balance, write_balance),
              ROUTER_LOGITS,
              Ignored(("router_jitter_noise",), "noise on the experts' input in training, which Weft does not add; "
                      "outputs are the same.", notify=True)),
        weights=weights, otherwise=(stacked_weights,), prefix="model.", tied=LM_HEAD))
