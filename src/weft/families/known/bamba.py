"""Bamba: Mamba-2 in most layers, attention in the others, and a feed-forward in all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.llama import ATTENTION, BIASED, GLU, LM_HEAD, VALUES, decoder, shapes
from weft.families.known.mamba2 import LIMIT, MIXER, mixer_weights, read_expand, read_limit, write_limit
from weft.families.rope import Rotary, reordered
from weft.families.template import N_LAYERS, Facts, TemplateChoice
from weft.families.tensor_steps import fuse
from weft.families.weights import Rule, both, rename

ATTENTION_LAYERS, HEAD = "attn_layer_indices", "mamba_d_head"
FIRST_STEPS: Mapping[str, float] = {"low": 0.001, "high": 0.1, "floor": 1e-4}
"""Of initial weights; files have no keys for them."""


def of_some(fact: str, rule: KeyRule) -> KeyRule:
    """A rule of one kind of layer, for a model that may have none of that kind: then ``fact`` is not known, and nothing
    is written."""
    return Together(rule.keys, rule.read, lambda facts: rule.write(facts) if fact in facts else {}, rule.notes)


def read_layers(raw: Raw, facts: Facts) -> Facts:
    """The indices of the layers with attention, from 0; all others have a state space."""
    given = typed(ATTENTION_LAYERS, raw.get(ATTENTION_LAYERS), list) or []
    count = facts[N_LAYERS]
    if any(not isinstance(each, int) or not 0 <= each < count for each in given):
        raise KeyProblem(f"{ATTENTION_LAYERS}: {given}, which are not indices of {count} layers.")
    return {"attends": [index in given for index in range(count)]}


def write_layers(facts: Facts) -> dict[str, Any]:
    """The indices. Keys of both kinds of layer are required, so both must be there."""
    if all(facts["attends"]) or not any(facts["attends"]):
        raise KeyProblem(f"{ATTENTION_LAYERS}: all layers have "
                         f"{'attention' if any(facts['attends']) else 'a state space'}, so the sizes of the others are "
                         "not known.")
    return {ATTENTION_LAYERS: [index for index, attends in enumerate(facts["attends"]) if attends]}


def read_head(raw: Raw, facts: Facts) -> Facts:
    """``mamba_d_head``: a number, or "auto" for what divides ``mamba_expand`` times the width among the heads."""
    value = raw.get(HEAD)
    if value not in (None, "auto"):
        return {"ssm_head": typed(HEAD, value, int)}
    return {"ssm_head": (raw.get("mamba_expand") or 2) * facts["d_model"] // facts["ssm_heads"]}


def state_space(n_heads: int = 128) -> tuple[KeyRule, ...]:
    """The keys of state spaces beside attention, with the defaults of `transformers`, but for the width."""
    return (Read("mamba_n_heads", "ssm_heads", default=n_heads),
            Together((HEAD,), read_head, lambda facts: {HEAD: facts["ssm_head"]}),
            Read("mamba_n_groups", "n_groups", default=1), Read("mamba_d_state", "d_state", default=256),
            Read("mamba_d_conv", "d_conv", default=4), Read("mamba_conv_bias", "conv_bias", bool, True),
            Read("mamba_proj_bias", "ssm_bias", bool, False), Together((LIMIT,), read_limit, write_limit),
            Together((), lambda raw, facts: dict(FIRST_STEPS), lambda facts: {}),
            Ignored(("mamba_chunk_size",), "how states are computed"),
            Ignored(("num_logits_to_keep",), "how transformers runs the model"))


OF_ATTENTION = {"num_attention_heads", "num_key_value_heads", "head_dim", "attention_dropout"}
GENERAL: tuple[KeyRule, ...] = (
    *shapes(context=262144, d_ff=14336, n_kv_heads=8, vocab_size=128000),
    *(rule for rule in VALUES if "rms_norm_eps" not in rule.keys), Read("rms_norm_eps", "eps", float, 1e-5))
KEYS: tuple[KeyRule, ...] = (
    *(of_some("n_heads", rule) if OF_ATTENTION.intersection(rule.keys) else rule for rule in GENERAL),
    Read("tie_word_embeddings", "tied", bool, False), Together((ATTENTION_LAYERS,), read_layers, write_layers),
    of_some("n_heads", Rotary(share=0.5)),
    of_some("n_heads", Read("attention_bias", "attention_bias", bool, False, codec=BIASED)),
    *(of_some("ssm_heads", rule) for rule in state_space()), of_some("ssm_heads", read_expand("mamba_expand", 2)),
    Read("mlp_bias", "mlp_bias", bool, False),
    Ignored(("z_loss_coefficient",), "of training alone"), Ignored(("attn_rotary_emb",), "a copy: half of a head"),
    Fixed("layers_block_type", (None,), why="The layers with attention are given by their indices."))


def layer_weights(theirs: str, ours: str, facts: Facts) -> list[Rule]:
    """A layer's attention: separate queries, keys and values."""
    q, kv, size = facts["n_heads"], facts["n_kv_heads"], facts["d_head"]
    steps = (fuse((q * size, kv * size, kv * size)), *reordered(facts, q + kv))
    return [*(Rule(tuple(f"{theirs}.{name}_proj.{part}" for name in "qkv"), (f"{ours}.qkv.{part}",), steps)
              for part in ("weight", "bias")), *both(f"{theirs}.o_proj", f"{ours}.output")]


def outer_weights() -> list[Rule]:
    """All that layers of both kinds have, and what is around them."""
    layer, block = "model.layers.{layer}", "stack.layers.{layer}"
    return [rename("model.embed_tokens.weight", "embedding.tokens.weight"),
            rename(f"{layer}.input_layernorm.weight", f"{block}.norms.0.weight"),
            rename(f"{layer}.pre_ff_layernorm.weight", f"{block}.norms.1.weight"),
            *(rule for name in ("gate", "up", "down")
              for rule in both(f"{layer}.feed_forward.{name}_proj", f"{block}.layers.1.{name}")),
            rename("model.final_layernorm.weight", "norm.weight"), rename("lm_head.weight", "readout.weight")]


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors."""
    rules = outer_weights()
    for index, attends in enumerate(facts["attends"]):
        theirs, ours = f"model.layers.{index}", f"stack.layers.{index}.layers.0"
        rules += (layer_weights(f"{theirs}.self_attn", ours, facts) if attends
                  else mixer_weights(f"{theirs}.mamba", ours))
    return rules


def half_turned(facts: Facts) -> list[str]:
    """The models that the class would turn otherwise: it has no key for the share."""
    if "rot" not in facts or (facts["rot"] is not None and 2 * facts["rot"] == facts["d_head"]):
        return []
    return ["partial_rotary_factor: BambaConfig turns half of a head's features, and this model another share."]


BAMBA = Family(
    name="bamba", template=decoder(TemplateChoice("attends", {False: MIXER, True: ATTENTION}, each=True), GLU),
    source="Chennabasappa et al. 2024 (Bamba: inference-efficient hybrid Mamba2 model)",
    native=Native(model_type="bamba", architecture="BambaForCausalLM", architectures=("BambaModel",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD, limits=half_turned))
