"""Qwen 1.5 and 2 with experts: Qwen 2's attention, and beside the chosen experts a gated one that every token sees."""

from __future__ import annotations

from weft.families.family import Family, Native
from weft.families.keys import Read, words
from weft.families.known.llama import (
    GLU,
    LM_HEAD,
    TIED,
    VALUES,
    attention_weights,
    decoder,
    glu_weights,
    outer_weights,
    shapes,
)
from weft.families.known.qwen2 import WINDOWED
from weft.families.known.qwen3_moe import EXPERTS, OURS, expert_weights, experts, sizes, some_sparse, where_sparse
from weft.families.rope import Rotary
from weft.families.template import Fact, Facts
from weft.families.weights import Rule, rename
from weft.families.windows import windows_by_layer

SHARED = {"shared_expert": GLU | {"bias": False, "d_ff": Fact("d_shared")}, "shared_gate": True}


def weights(facts: Facts) -> list[Rule]:
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
        weights=weights, prefix="model.", tied=LM_HEAD))
