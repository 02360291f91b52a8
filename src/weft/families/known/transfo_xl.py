"""Transformer-XL: relative positions with segment memory, adaptive embeddings and an adaptive softmax tied to them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from weft.families.common import GENERATION
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.template import N_LAYERS, Fact, Facts, Layers, TemplateChoice
from weft.families.tensor_steps import TRANSPOSE, fuse
from weft.families.weights import Rule, UnusedTensors, both, rename
from weft.masks import Segments
from weft.masks.expression import parse_mask

LAYER_NORM = {"kind": "layernorm", "eps": Fact("eps")}
ATTENTION = {"n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "mask": Fact("mask"),
             "position": {"kind": "transformer_xl", "max_distance": Fact("clamp"), "std": Fact("std")},
             "scores": {"dropout": Fact("attention_dropout")}}
MLP = {"kind": "mlp", "d_ff": Fact("d_ff"), "activation": "relu", "bias": True}
REST = {"norm": LAYER_NORM, "dropout": Fact("dropout")}
EMBEDDING = {"dropout": Fact("dropout"), "std": Fact("std"), "scale": Fact("scale"), "d_embedding": Fact("d_embedding")}
CLUSTERS = {"cutoffs": Fact("cutoffs"), "div_val": Fact("div_val")}
ADAPTIVE = {"kind": "adaptive", "cutoffs": Fact("softmax_cutoffs"), "div_val": Fact("div_val"),
            "d_embedding": Fact("d_embedding"), "tied": Fact("tied"), "bias": "all"}
TEMPLATE = {
    "kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": TemplateChoice("clustered", {True: {**EMBEDDING, "adaptive": CLUSTERS}, False: EMBEDDING}),
    "blocks": Layers(TemplateChoice("pre_norm", {
        False: {"kind": "post", **REST, "layers": [{"kind": "zero_memory_attention", **ATTENTION}, MLP]},
        True: {"kind": "pre", **REST, "layers": [{"kind": "attention", **ATTENTION}, MLP]}})),
    "readout": TemplateChoice("softmax", {
        "clusters": {**ADAPTIVE, "projections": "all", "tied_projections": Fact("tied_projections")},
        "one_width": {**ADAPTIVE, "div_val": 1, "projections": "none"},
        "plain": {"kind": "linear", "tied": Fact("tied"), "d_embedding": Fact("d_embedding"), "bias": True}})}
"""With norms before the layers keys would be made of a norm's shift where the memory is zero, which attention does not
know, so there the memory begins empty, as in the paper."""

CUTOFFS, DIVISOR, WIDTH, SHARED, BY_CLUSTER = "cutoffs", "div_val", "d_embed", "proj_share_all_but_first", "tie_projs"
MEMORY, SAME, SEGMENT, PRE = "mem_len", "same_length", "tgt_len", "pre_lnorm"


def read_memory(raw: Raw, facts: Facts) -> Facts:
    """The reach of a query: as many tokens as the memory has, or its segment and the memory before it. The class takes
    each call for a segment; its length is that of training, a key of the published files."""
    memory, segment = typed(MEMORY, raw.get(MEMORY, 1600), int), typed(SEGMENT, raw.get(SEGMENT, 128), int)
    same = typed(SAME, raw.get(SAME, True), bool)
    if same and memory < 1:
        raise KeyProblem(f"{MEMORY}: {memory} with {SAME} hides every key; give at least 1, or {SAME} false.")
    return {"context": segment, "mask": f"causal & window({memory})" if same else f"segments({segment}, {memory})"}


def write_memory(facts: Facts) -> dict[str, Any]:
    """The keys of the same."""
    mask = parse_mask(facts["mask"])
    window = mask.causal_window()
    if isinstance(mask, Segments):
        if mask.size != facts["context"]:
            raise KeyProblem(f"{SEGMENT}: segments of {mask.size} tokens in a context of {facts['context']}; the file "
                             "has one number for both.")
        return {SAME: False, MEMORY: mask.memory, SEGMENT: mask.size}
    if window is None or window.size is None:
        raise KeyProblem(f"{MEMORY}: cannot express the mask {facts['mask']!r}; only causal & window(m) and "
                         "segments(t, m).")
    return {SAME: True, MEMORY: window.size, SEGMENT: facts["context"]}


def read_softmax(raw: Raw, facts: Facts) -> Facts:
    """The clusters of ids, and which maps of the softmax are the embedding's."""
    cutoffs, divisor = typed(CUTOFFS, raw.get(CUTOFFS, [20000, 40000, 200000]), list), typed(DIVISOR, raw.get(
        DIVISOR, 4), int)
    width, d_model = typed(WIDTH, raw.get(WIDTH, 1024), int), facts["d_model"]
    if not cutoffs and divisor > 1:
        raise KeyProblem(f"{DIVISOR}: {divisor} without cutoffs; with a single cluster only 1 can be read.")
    clustered = divisor > 1
    shared = _shared(raw, len(cutoffs))
    if shared != "none" and not clustered:
        if cutoffs and width != d_model:
            raise KeyProblem(f"{SHARED}: with {DIVISOR} 1 the maps of all clusters would be the embedding's one map; "
                             "only clusters of different widths, or maps of their own, can be read.")
        shared = "none"
    found = {"clustered": clustered, "softmax": "clusters" if clustered else "one_width" if cutoffs else "plain",
             "d_embedding": None if width == d_model else width,
             "scale": "sqrt_width" if clustered or width == d_model else float(d_model ** 0.5)}
    return found | {"softmax_cutoffs": list(cutoffs)} | (
        {"cutoffs": list(cutoffs), "div_val": divisor, "tied_projections": shared} if clustered else {})


def _shared(raw: Raw, clusters: int) -> str:
    """Which maps are shared: a list, one truth value for each cluster, takes precedence over the single key."""
    single = typed(SHARED, raw.get(SHARED, True), bool)
    listed = typed(BY_CLUSTER, raw.get(BY_CLUSTER), list)
    listed = [False, *[single] * clusters] if listed is None else listed
    kinds = {"none": [False] * (clusters + 1), "tails": [False, *[True] * clusters], "all": [True] * (clusters + 1)}
    kind = next((name for name, each in kinds.items() if each == listed[:clusters + 1]), None)
    if kind is None:
        raise KeyProblem(f"{BY_CLUSTER}: {listed}, but only all, none, or all but the first can be shared.")
    return kind


def write_softmax(facts: Facts) -> dict[str, Any]:
    """The keys of the same."""
    d_model, clustered, softmax = facts["d_model"], facts["clustered"], facts["softmax"]
    narrow, cutoffs = facts.get("d_embedding"), list(facts.get("softmax_cutoffs", ()))
    if clustered is not (softmax == "clusters") or (clustered and facts["cutoffs"] != cutoffs):
        raise KeyProblem(f"{DIVISOR}: the embedding and the softmax have clusters of one width or of several, both "
                         "alike.")
    scale = facts.get("scale")
    if scale != "sqrt_width" if clustered or narrow is None else abs((scale or 0) - d_model ** 0.5) > 1e-9:
        raise KeyProblem(f"embeddings are multiplied by {scale}, where the class has the root of d_model.")
    shared = facts["tied_projections"] if clustered else "tails" if narrow is None or softmax == "plain" else "none"
    listed = [shared == "all", *[shared != "none"] * len(cutoffs)]
    return {CUTOFFS: cutoffs, DIVISOR: facts["div_val"] if clustered else 1, WIDTH: narrow or d_model,
            SHARED: shared != "none", BY_CLUSTER: listed}


def read_clamp(raw: Raw, facts: Facts) -> Facts:
    """The longest distance that is told from longer ones; None for a number that means no limit."""
    value = typed("clamp_len", raw.get("clamp_len", 1000), int)
    return {"clamp": value if value is not None and value > 0 else None}


NORMS_BEFORE = Together(
    (PRE,), lambda raw, facts: {"pre_norm": bool(typed(PRE, raw.get(PRE, False), bool))},
    lambda facts: {PRE: facts["pre_norm"]},
    lambda raw: [f"{PRE}: the memory begins empty, as in the paper; the class begins with zeros, so its first logits "
                 "differ unless it is given mems of no tokens."] if raw.get(PRE) else [])
"""Norms before the layers, and a note that the class begins with another memory."""


KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=267735, alias=("n_token",)),
    Read("d_model", "d_model", default=1024, alias=("hidden_size",)),
    Read("n_layer", N_LAYERS, default=18, alias=("num_hidden_layers",)),
    Read("n_head", "n_heads", default=16, alias=("num_attention_heads",)), Read("d_head", "d_head", default=64),
    Read("d_inner", "d_ff", default=4096), Together((MEMORY, SAME, SEGMENT), read_memory, write_memory),
    Together(("clamp_len",), read_clamp, lambda facts: {"clamp_len": facts["clamp"] or -1}),
    NORMS_BEFORE, Read("tie_word_embeddings", "tied", bool, True),
    Together((CUTOFFS, DIVISOR, WIDTH, SHARED, BY_CLUSTER), read_softmax, write_softmax),
    Read("dropout", "dropout", float, 0.1), Read("dropatt", "attention_dropout", float, 0.0),
    Read("layer_norm_epsilon", "eps", float, 1e-5), Read("init_std", "std", float, 0.02),
    Fixed("attn_type", (0, None), default=0, why="Its class has no other attention."),
    Fixed("untie_r", (True,), default=True, why="Its u and v would be the same in all layers, which no released model "
          "has."),
    Fixed("sample_softmax", (-1, 0, None), default=-1, why="Its class has no sampled softmax."),
    Ignored(("init", "init_range", "proj_init_std"), "how its weights were drawn"),
    Ignored(("adaptive", "tie_weight"), "copies of what cutoffs and tie_word_embeddings say"),
    Ignored(("ext_len", "eval_batch_size", "batch_size", "trainer_compatible"), "how the released code ran it"),
    Ignored((*GENERATION, "max_position_embeddings"), "how text is generated, which the options of the commands set"))


def weights(facts: Facts) -> list[Rule]:
    """All tensors; a softmax that is not tied has its own, and maps of the softmax stand transposed in the file."""
    theirs, ours = "transformer.layers.{layer}", "stack.layers.{layer}"
    attention = {"qkv_net.weight": "qkv.weight", "o_net.weight": "output.weight", "r_net.weight": "position.r.weight",
                 "r_w_bias": "position.u", "r_r_bias": "position.v"}
    table = "transformer.word_emb.emb_{kind}s.{index}"
    layers = table.format(kind="layer", index="{i}"), table.format(kind="proj", index="{i}")
    found = [
        rename(f"{layers[0]}.weight", "embedding.tokens.tables.{i}.weight"),
        rename(layers[1], "embedding.tokens.projections.{i}.weight"),
        rename("transformer.word_emb.emb_layers.0.weight", "embedding.tokens.weight"),
        rename("transformer.word_emb.emb_projs.0", "embedding.projection.weight"),
        *(rename(f"{theirs}.dec_attn.{a}", f"{ours}.layers.0.{b}") for a, b in attention.items()),
        *both(f"{theirs}.dec_attn.layer_norm", f"{ours}.norms.0"), *both(f"{theirs}.pos_ff.layer_norm",
                                                                         f"{ours}.norms.1"),
        *both(f"{theirs}.pos_ff.CoreNet.0", f"{ours}.layers.1.up"),
        *both(f"{theirs}.pos_ff.CoreNet.3", f"{ours}.layers.1.down"),
        rename("crit.cluster_weight", "readout.clusters"), rename("crit.cluster_bias", "readout.cluster_bias"),
        rename("crit.out_layers.{i}.weight", "readout.tables.{i}"),
        rename("crit.out_layers.0.weight", "readout.weight"),
        rename("crit.out_projs.{i}", "readout.projections.{i}.weight", TRANSPOSE),
        rename("crit.out_projs.0", "readout.projection.weight", TRANSPOSE)]
    if facts["softmax"] == "clusters":
        ends = pairwise([0, *facts["softmax_cutoffs"], facts["vocab_size"]])
        sizes = tuple(end - first for first, end in ends)
        names = tuple(f"crit.out_layers.{index}.bias" for index in range(len(sizes)))
        return [*found, Rule(names, ("readout.bias",), (fuse(sizes),))]
    return [*found, rename("crit.out_layers.0.bias", "readout.bias")]


MOST = 16
"""Clusters of which copies are known; the published models have four."""

TRANSFO_XL = Family(
    name="transfo-xl", template=TEMPLATE, source="Dai et al. 2019 (arXiv:1901.02860), section 3",
    native=Native(
        model_type="transfo-xl", architecture="TransfoXLLMHeadModel", keys=KEYS, weights=weights,
        prefix="transformer.", opened_by="4.37.2",
        junk=(UnusedTensors(r"transformer\.pos_emb\.inv_freq", "wavelengths, which the configuration gives"),),
        copies=tuple((f"crit.out_{copy}", f"transformer.word_emb.emb_{source}") for index in range(MOST)
                     for copy, source in ((f"layers.{index}.weight", f"layers.{index}.weight"),
                                          (f"projs.{index}", f"projs.{index}")))))
