"""SantaCoder and StarCoder: GPT-2 with one key/value head, and weights that are not transposed."""

from __future__ import annotations

from typing import Any

from weft.families.common import ACTIVATIONS
from weft.families.family import Family, Native
from weft.families.keys import Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed, words
from weft.families.known.gpt2 import ATTENTION, LAYER_NORM, MLP, RATES, sizes
from weft.families.known.gpt2 import TEMPLATE as GPT2
from weft.families.template import Fact, Facts, Layers
from weft.families.tensor_steps import ungroup
from weft.families.weights import Rule, both, rename

SHARED = ATTENTION | {"n_kv_heads": Fact("n_kv_heads"),
                      "scores": {"scale": Fact("scale"), "dropout": Fact("attention_dropout")}}
TEMPLATE = GPT2 | {"blocks": Layers({"kind": "pre", "norm": LAYER_NORM, "dropout": Fact("dropout"),
                                     "layers": [SHARED, MLP]})}


def read_heads(raw: Raw, facts: Facts) -> Facts:
    """One key/value head, or as many as there are heads."""
    shared = typed("multi_query", raw.get("multi_query", True), bool)
    return {"n_kv_heads": 1 if shared else facts["n_heads"]}


def write_heads(facts: Facts) -> dict[str, Any]:
    """The switch between the two."""
    if facts["n_kv_heads"] not in (1, facts["n_heads"]):
        raise KeyProblem(f"multi_query: {facts['n_kv_heads']} key/value heads of {facts['n_heads']}; the format has 1 "
                         "and as many as there are heads.")
    return {"multi_query": facts["n_kv_heads"] == 1}


KEYS: tuple[KeyRule, ...] = (
    *sizes(50257, 1024),
    Read("n_inner", "d_ff", derive=lambda facts: 4 * facts["d_model"]),
    Read("activation_function", "activation", str, "gelu_pytorch_tanh", codec=ACTIVATIONS), *RATES,
    Read("tie_word_embeddings", "tied", bool, True),
    Read("scale_attn_weights", "scale", bool, True, codec=words({True: None, False: 1.0})),
    Together(("multi_query",), read_heads, write_heads),
    Ignored(("num_key_value_heads",), "a copy of what multi_query says"),
    Ignored(("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"), "where transformers rounds; Weft "
            "computes the weights in float32"),
    Ignored(("inference_runner", "validate_runner_input", "pre_allocate_kv_cache", "max_sequence_length",
             "max_batch_size", "pad_key_length"), "how early versions of transformers ran the model"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; without sharing, each head has its q, k and v together in the file."""
    theirs, ours = "transformer.h.{layer}", "stack.layers.{layer}"
    heads, size = facts["n_heads"], facts["d_head"]
    apart = (ungroup(heads, (size, size, size)),) if facts["n_kv_heads"] == heads and heads > 1 else ()
    pairs = {"attn.c_proj": "layers.0.output", "mlp.c_fc": "layers.1.up", "mlp.c_proj": "layers.1.down",
             "ln_1": "norms.0", "ln_2": "norms.1"}
    return [rename("transformer.wte.weight", "embedding.tokens.weight"),
            rename("transformer.wpe.weight", "embedding.position.table"),
            *both(f"{theirs}.attn.c_attn", f"{ours}.layers.0.qkv", *apart),
            *(rule for a, b in pairs.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}")),
            *both("transformer.ln_f", "norm"), rename("lm_head.weight", "readout.weight")]


GPT_BIGCODE = Family(
    name="gpt_bigcode", template=TEMPLATE,
    source="Allal et al. 2023 (arXiv:2301.03988), section 5; Li et al. 2023 (arXiv:2305.06161), section 5",
    native=Native(model_type="gpt_bigcode", architecture="GPTBigCodeForCausalLM", architectures=("GPTBigCodeModel",),
                  keys=KEYS, weights=weights, prefix="transformer.", tied=("lm_head.weight", "transformer.wte.weight")))
