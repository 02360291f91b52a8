"""OPT: positions from the table's third row on, norms before or after the layers, narrow embeddings."""

from __future__ import annotations

from typing import Any

from weft.families.common import ACTIVATIONS, divided_heads
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.template import N_LAYERS, Fact, Facts, Layers, TemplateChoice
from weft.families.tensor_steps import fuse
from weft.families.weights import Rule, UnusedTensors, both, rename

NORM = {"kind": "layernorm", "weight": Fact("affine"), "bias": Fact("affine")}
ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "bias": Fact("attention_bias"),
             "scores": {"dropout": Fact("attention_dropout")}}
MLP = {"kind": "mlp", "d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": Fact("mlp_bias")}
BLOCK = {"norm": NORM, "dropout": Fact("dropout"), "layers": [ATTENTION, MLP]}
TEMPLATE = {
    "kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": {"d_embedding": Fact("d_embedding"), "std": Fact("std")},
    "position": {"kind": "learned", "max_length": Fact("context"), "offset": 2},
    "blocks": Layers(TemplateChoice("norm_first", {True: {"kind": "pre"} | BLOCK, False: {"kind": "post"} | BLOCK})),
    "norm": TemplateChoice("final_norm", {True: NORM, False: {"kind": "none"}}),
    "readout": {"kind": "linear", "tied": Fact("tied"), "d_embedding": Fact("d_embedding")}}

FIRST, REMOVED = "do_layer_norm_before", "_remove_final_layer_norm"
NARROW, BIASED = "word_embed_proj_dim", "enable_bias"


def read_norms(raw: Raw, facts: Facts) -> Facts:
    """The place of norms; there is a last norm only where they precede the layers."""
    first, removed = typed(FIRST, raw.get(FIRST, True), bool), typed(REMOVED, raw.get(REMOVED, False), bool)
    return {"norm_first": bool(first), "final_norm": bool(first) and not removed}


def write_norms(facts: Facts) -> dict[str, Any]:
    """The two switches."""
    if facts["final_norm"] and not facts["norm_first"]:
        raise KeyProblem(f"{FIRST}: a model whose norms follow its layers has no norm after the last block.")
    return {FIRST: facts["norm_first"], REMOVED: facts["norm_first"] and not facts["final_norm"]}


def read_width(raw: Raw, facts: Facts) -> Facts:
    """The width of embeddings, between which and the model's there is a map if they differ."""
    width = typed(NARROW, raw.get(NARROW), int)
    return {"d_embedding": None if width == facts["d_model"] else width}


def write_width(facts: Facts) -> dict[str, Any]:
    """The width of embeddings; a map between equal widths cannot be expressed."""
    if facts["d_embedding"] == facts["d_model"]:
        raise KeyProblem(f"{NARROW}: maps embeddings of {facts['d_model']} features to as many; the file has a map "
                         "only between different widths.")
    return {NARROW: facts["d_embedding"] or facts["d_model"]}


def read_biases(raw: Raw, facts: Facts) -> Facts:
    """Biases of all linear maps in blocks, or of none."""
    biased = bool(typed(BIASED, raw.get(BIASED, True), bool))
    return {"attention_bias": "all" if biased else "none", "mlp_bias": biased}


def write_biases(facts: Facts) -> dict[str, Any]:
    """One switch for both."""
    if facts["attention_bias"] != ("all" if facts["mlp_bias"] else "none"):
        raise KeyProblem(f"{BIASED}: attention has biases on {facts['attention_bias']!r} and the feed-forward "
                         f"{'has them' if facts['mlp_bias'] else 'none'}; the file has all or none.")
    return {BIASED: facts["mlp_bias"]}


KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=50272), Read("hidden_size", "d_model", default=768),
    Read("num_hidden_layers", N_LAYERS, default=12), Read("num_attention_heads", "n_heads", default=12),
    divided_heads("num_attention_heads", "hidden_size"), Read("ffn_dim", "d_ff", default=3072),
    Read("max_position_embeddings", "context", default=2048), Together((FIRST, REMOVED), read_norms, write_norms),
    Together((NARROW,), read_width, write_width), Together((BIASED,), read_biases, write_biases),
    Read("layer_norm_elementwise_affine", "affine", bool, True),
    Read("activation_function", "activation", str, "relu", codec=ACTIVATIONS), Read("dropout", "dropout", float, 0.1),
    Read("attention_dropout", "attention_dropout", float, 0.0), Read("init_std", "std", float, 0.02),
    Read("tie_word_embeddings", "tied", bool, True),
    Fixed("learned_embeddings", (True, None), default=True, why="Its positions are learned."),
    Fixed("scale_embeddings", (False, None), default=False, why="Its embeddings are not scaled."),
    Ignored(("layerdrop", "activation_dropout"), "matters to training only, and Weft drops no layers"),
    Ignored(("output_projection",), "the file of 13 billion parameters has it; the class always has a readout"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; the file stores queries, keys and values as separate tensors."""
    outer, theirs, ours = "model.decoder", "model.decoder.layers.{layer}", "stack.layers.{layer}"
    width = facts["d_model"]
    fused = [Rule(tuple(f"{theirs}.self_attn.{name}_proj.{part}" for name in "qkv"), (f"{ours}.layers.0.qkv.{part}",),
                  (fuse((width, width, width)),)) for part in ("weight", "bias")]
    pairs = {"self_attn.out_proj": "layers.0.output", "fc1": "layers.1.up", "fc2": "layers.1.down",
             "self_attn_layer_norm": "norms.0", "final_layer_norm": "norms.1"}
    return [rename(f"{outer}.embed_tokens.weight", "embedding.tokens.weight"),
            rename(f"{outer}.embed_positions.weight", "embedding.position.table"),
            rename(f"{outer}.project_in.weight", "embedding.projection.weight"),
            rename(f"{outer}.project_out.weight", "readout.projection.weight"), *fused,
            *(rule for a, b in pairs.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}")),
            *both(f"{outer}.final_layer_norm", "norm"), rename("lm_head.weight", "readout.weight")]


OPT = Family(
    name="opt", template=TEMPLATE, source="Zhang et al. 2022 (arXiv:2205.01068), section 2",
    native=Native(
        model_type="opt", architecture="OPTForCausalLM", architectures=("OPTModel",), keys=KEYS, weights=weights,
        prefix="model.", tied=("lm_head.weight", "model.decoder.embed_tokens.weight"),
        junk=(UnusedTensors(r"(model\.)?decoder\.version", "of the code that wrote the file"),)))
