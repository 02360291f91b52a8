"""Falcon: 7B (one key/value head, one norm), 40B and 180B (groups of heads, two norms), 11B (groups, one norm), and the
RW models, sequential and with ALiBi."""

from __future__ import annotations

from typing import Any

from weft.families.common import ACTIVATIONS, divided_heads
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.gpt2 import LAYER_NORM
from weft.families.rope import Rotary, reordered
from weft.families.template import N_LAYERS, Fact, Facts, Layers, TemplateChoice
from weft.families.tensor_steps import ungroup
from weft.families.weights import Rule, both, rename

ROPE = {"kind": "rope", "layout": Fact("layout"), "base": Fact("rope_base"), "rot": Fact("rot"),
        "scaling": Fact("rope_scaling")}
ALIBI = {"kind": "alibi", "scaled": True, "rounding": "bfloat16"}
ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "n_kv_heads": Fact("n_kv_heads"),
             "d_head": Fact("d_head"), "bias": Fact("attention_bias"), "scores": {"dropout": Fact("attention_dropout")},
             "position": TemplateChoice("alibi", {False: ROPE, True: ALIBI})}
MLP = {"kind": "mlp", "d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": Fact("bias")}
BLOCK = {"norm": LAYER_NORM, "dropout": Fact("dropout"), "layers": [ATTENTION, MLP]}
ONE_NORM, TWO_NORMS, SEQUENTIAL = "one norm", "two norms", "sequential"
TEMPLATE = {
    "kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": {"std": Fact("std")},
    "blocks": Layers(TemplateChoice("wiring", {ONE_NORM: {"kind": "parallel", "shared_norm": True} | BLOCK,
                                               TWO_NORMS: {"kind": "parallel", "shared_norm": False} | BLOCK,
                                               SEQUENTIAL: {"kind": "pre"} | BLOCK})),
    "norm": LAYER_NORM, "readout": {"kind": "linear", "tied": Fact("tied")}}

NEW, PARALLEL, NORMS = "new_decoder_architecture", "parallel_attn", "num_ln_in_parallel_attn"
MULTI_QUERY, KV_HEADS, OLD_KV_HEADS = "multi_query", "num_kv_heads", "n_head_kv"
BIASES = {True: "all", False: "none"}
GROUPED = "RefinedWeb"
"""What Falcon-40B's first files call themselves; they have the new architecture and no key that says so."""


def is_new(raw: Raw) -> bool:
    """Whether the blocks are Falcon-40B's."""
    given = typed(NEW, raw.get(NEW), bool)
    return raw.get("model_type") == GROUPED if given is None else bool(given)


def read_wiring(raw: Raw, facts: Facts) -> Facts:
    """How attention, feed-forward and norms are wired."""
    parallel = typed(PARALLEL, raw.get(PARALLEL, True), bool)
    norms = typed(NORMS, raw.get(NORMS), int)
    new = is_new(raw)
    if not parallel and new:
        raise KeyProblem(f"{PARALLEL}: false, but with {NEW} attention and feed-forward are parallel.")
    if not parallel:
        return {"wiring": SEQUENTIAL}
    count = (2 if new else 1) if norms is None else norms
    if count not in ((1, 2) if new else (1,)):
        raise KeyProblem(f"{NORMS}: {count}, but such a block has {'1 or 2' if new else '1, without ' + NEW}.")
    return {"wiring": TWO_NORMS if count == 2 else ONE_NORM}


def read_kv_heads(raw: Raw, facts: Facts) -> Facts:
    """Key/value heads: a separate number in the new architecture, else one or as many as there are heads."""
    heads = facts["n_heads"]
    given = next((typed(key, raw[key], int) for key in (KV_HEADS, OLD_KV_HEADS) if raw.get(key) is not None), None)
    if is_new(raw):
        return {"n_kv_heads": heads if given is None else given}
    if typed(MULTI_QUERY, raw.get(MULTI_QUERY, True), bool):
        return {"n_kv_heads": 1}
    if given not in (None, heads):
        raise KeyProblem(f"{KV_HEADS}: {given}, but without {NEW} and {MULTI_QUERY} each of {heads} heads has its own.")
    return {"n_kv_heads": heads}


def write_structure(facts: Facts) -> dict[str, Any]:
    """The keys of the structure: the new architecture where the old one cannot express the number of heads."""
    heads, kv_heads, wiring = facts["n_heads"], facts["n_kv_heads"], facts["wiring"]
    grouped = kv_heads not in (1, heads)
    if wiring == SEQUENTIAL and grouped:
        raise KeyProblem(f"{kv_heads} key/value heads for {heads} heads: in sequential blocks the class has 1 or "
                         f"{heads}.")
    new = wiring == TWO_NORMS or grouped
    norms = {ONE_NORM: 1, TWO_NORMS: 2, SEQUENTIAL: None}[wiring]
    return {NEW: new, PARALLEL: wiring != SEQUENTIAL, NORMS: norms if new else None, KV_HEADS: kv_heads,
            MULTI_QUERY: kv_heads == 1}


def read_bias(raw: Raw, facts: Facts) -> Facts:
    """One switch for attention and feed-forward."""
    value = bool(typed("bias", raw.get("bias", False), bool))
    return {"bias": value, "attention_bias": BIASES[value]}


def write_bias(facts: Facts) -> dict[str, Any]:
    """The switch, if both are alike."""
    wanted = BIASES[facts["bias"]]
    if facts["attention_bias"] != wanted:
        raise KeyProblem(f"attention has biases {facts['attention_bias']!r}, and with this feed-forward the file says "
                         f"{wanted!r}; it has one switch for both.")
    return {"bias": facts["bias"]}


ROTARY = Rotary()


def write_rotary(facts: Facts) -> dict[str, Any]:
    """Nothing under ALiBi."""
    return {} if facts["alibi"] else ROTARY.write(facts)


KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=65024), Read("hidden_size", "d_model", default=4544, alias=("n_embed",)),
    Read("num_hidden_layers", N_LAYERS, default=32, old=("n_layer",)),
    Read("num_attention_heads", "n_heads", default=71, old=("n_head",)),
    Read("max_position_embeddings", "context", default=2048), divided_heads("num_attention_heads", "hidden_size"),
    Read("ffn_hidden_size", "d_ff", derive=lambda facts: 4 * facts["d_model"]),
    Read("activation", "activation", str, "gelu", codec=ACTIVATIONS), Read("alibi", "alibi", bool, False),
    Together((PARALLEL, NEW, NORMS), read_wiring, write_structure),
    Together((KV_HEADS, OLD_KV_HEADS, MULTI_QUERY), read_kv_heads, lambda facts: {}),
    Together(ROTARY.keys, ROTARY.read, write_rotary), Read("layer_norm_epsilon", "eps", float, 1e-5),
    Together(("bias",), read_bias, write_bias),
    Read("attention_dropout", "attention_dropout", float, 0.0), Read("hidden_dropout", "dropout", float, 0.0),
    Read("initializer_range", "std", float, 0.02), Read("tie_word_embeddings", "tied", bool, True),
    Fixed("apply_residual_connection_post_layernorm", (False, None), why="The class has no such residual."),
    Ignored(("ff_factor",), "a copy of ffn_hidden_size / hidden_size"))


def weights(facts: Facts) -> list[Rule]:
    """All tensors. The file keeps each key/value head together with its queries, [q, ..., q, k, v]: with one such head
    that is all queries, then k and v; with as many as there are heads it is q, k and v head by head."""
    theirs, ours = "transformer.h.{layer}", "stack.layers.{layer}"
    heads, kv_heads, size = facts["n_heads"], facts["n_kv_heads"], facts["d_head"]
    turned = () if facts["alibi"] else reordered(facts, heads + kv_heads)
    names = {ONE_NORM: ("input_layernorm",), TWO_NORMS: ("ln_attn", "ln_mlp"),
             SEQUENTIAL: ("input_layernorm", "post_attention_layernorm")}[facts["wiring"]]
    pairs = {"self_attention.dense": "layers.0.output", "mlp.dense_h_to_4h": "layers.1.up",
             "mlp.dense_4h_to_h": "layers.1.down", **{name: f"norms.{n}" for n, name in enumerate(names)}}
    return [rename("transformer.word_embeddings.weight", "embedding.tokens.weight"),
            *both(f"{theirs}.self_attention.query_key_value", f"{ours}.layers.0.qkv",
                  ungroup(kv_heads, (heads // kv_heads * size, size, size)), *turned),
            *(rule for a, b in pairs.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}")),
            *both("transformer.ln_f", "norm"), rename("lm_head.weight", "readout.weight")]


def even_heads(facts: Facts) -> list[str]:
    """The models that FalconConfig rejects, also with ALiBi."""
    size = facts["d_head"]
    return [f"hidden_size: FalconConfig refuses heads of {size} features, an odd number."] if size % 2 else []


FALCON = Family(
    name="falcon", template=TEMPLATE, source="Almazrouei et al. 2023 (arXiv:2311.16867), section 4",
    native=Native(
        model_type="falcon", architecture="FalconForCausalLM", architectures=("FalconModel", "RWForCausalLM"),
        model_types=(GROUPED, "RefinedWebModel"), keys=KEYS, weights=weights, prefix="transformer.",
        tied=("lm_head.weight", "transformer.word_embeddings.weight"), limits=even_heads))
