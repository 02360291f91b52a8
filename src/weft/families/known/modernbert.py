"""ModernBERT: pre-norm layers without biases, gated feed-forwards, windows on most layers with another rotary base."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.families.common import ACTIVATIONS, divided_heads
from weft.families.encoders import ENCODER_ONLY, HeadKey, heads, inside
from weft.families.family import Family, Native
from weft.families.keys import PLAIN, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed, words
from weft.families.rope import Rotary, reordered
from weft.families.template import N_LAYERS, Fact, Facts, Layers
from weft.families.tensor_steps import split
from weft.families.weights import Rule, UnusedTensors, both, rename
from weft.families.windows import FULL, SLIDING, layer_types, single_size
from weft.masks.basic import Bidirectional, SymmetricWindow
from weft.masks.expression import parse_mask

NORM = {"kind": "layernorm", "eps": Fact("eps"), "bias": Fact("norm_bias")}
ATTENTION = {
    "kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "bias": Fact("attention_bias"),
    "mask": Fact("masks", each=True), "scores": {"dropout": Fact("attention_dropout")},
    "position": {"kind": "rope", "layout": Fact("layout"), "base": Fact("rope_bases", each=True),
                 "rot": Fact("rot"), "scaling": Fact("rope_scalings", each=True)}}
GLU = {"kind": "glu", "d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": Fact("mlp_bias")}
TRANSFORM = {"activation": Fact("head_activation"), "transform_bias": Fact("head_bias"), "norm": NORM}
TEMPLATE = {
    "kind": "encoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "embedding": {"dropout": Fact("embedding_dropout"), "std": Fact("std"), "norm": NORM}, "norm": NORM,
    "blocks": Layers({"kind": "pre", "norm": NORM, "first_norm": Fact("first_norms", each=True),
                      "dropout": Fact("dropout"), "layers": [ATTENTION, GLU]}),
    "head": heads(TRANSFORM | {"bias": Fact("decoder_bias")},
                  {"transform": True, **TRANSFORM, "pool": Fact("pool")}, {"transform": True, **TRANSFORM})}

WIDTH, TYPES, EVERY = "local_attention", "layer_types", "global_attn_every_n_layers"
BIDIRECTIONAL = "bidirectional"
BASES = {FULL: ("global_rope_theta", 160000.0), SLIDING: ("local_rope_theta", 10000.0)}
PARAMETERS = "rope_parameters"


def read_masks(raw: Raw, facts: Facts) -> Facts:
    """Windows of half of ``local_attention`` keys to each side, and on some layers none."""
    half = typed(WIDTH, raw.get(WIDTH, 128), int) // 2
    every, count = typed(EVERY, raw.get(EVERY, 3), int), facts[N_LAYERS]
    types = raw.get(TYPES) or [SLIDING if index % every else FULL for index in range(count)]
    local = repr(SymmetricWindow(half, half))
    return {"masks": [local if kind == SLIDING else BIDIRECTIONAL for kind in layer_types(types, count, half)],
            "first_norms": [index > 0 for index in range(count)]}


def write_masks(facts: Facts) -> dict[str, Any]:
    """The width of the windows and the layers' types."""
    if facts["first_norms"] != [index > 0 for index in range(facts[N_LAYERS])]:
        raise KeyProblem("first_norm: the class has a norm before each attention except the first.")
    halves = [_half(mask) for mask in facts["masks"]]
    half = single_size(halves)
    return {WIDTH: 128 if half is None else 2 * half, TYPES: [FULL if each is None else SLIDING for each in halves]}


def _half(mask: str) -> int | None:
    """The keys that a window has to each side; None without a window."""
    found = parse_mask(mask)
    if isinstance(found, Bidirectional):
        return None
    if not isinstance(found, SymmetricWindow) or found.left != found.right:
        raise KeyProblem(f"{TYPES}: cannot express the mask {mask!r}; only {BIDIRECTIONAL} attention and windows with "
                         "as many keys on both sides.")
    return found.left


def read_rotary(raw: Raw, facts: Facts) -> Facts:
    """The base and the scaling of each layer by its type."""
    given = typed(PARAMETERS, raw.get(PARAMETERS), dict) or {}
    wrong = sorted(key for key, value in given.items() if key not in BASES or not isinstance(value, Mapping | None))
    if wrong:
        raise KeyProblem(f"{PARAMETERS}: {', '.join(wrong)}, where only mappings for {FULL} and {SLIDING} can be read.")
    scaling = typed("rope_scaling", raw.get("rope_scaling"), dict) or {}
    found = {kind: Rotary(default, odd=False).read(
        {PARAMETERS: {**(given.get(kind) or {}), **scaling}, "rope_theta": raw.get(key)}, facts)
        for kind, (key, default) in BASES.items()}
    each = [found[FULL if mask == BIDIRECTIONAL else SLIDING] for mask in facts["masks"]]
    return {"layout": found[FULL]["layout"], "rot": found[FULL]["rot"],
            "rope_bases": [one["rope_base"] for one in each], "rope_scalings": [one["rope_scaling"] for one in each]}


def write_rotary(facts: Facts) -> dict[str, Any]:
    """The parameters of each type of layer, and the bases in the spelling before transformers 5."""
    written: dict[str, Any] = {}
    for kind, (_, default) in BASES.items():
        layers = zip(facts["masks"], facts["rope_bases"], facts["rope_scalings"], strict=True)
        found = [(base, scaling) for mask, base, scaling in layers if (mask == BIDIRECTIONAL) == (kind == FULL)]
        if any(each != found[0] for each in found):
            raise KeyProblem(f"{PARAMETERS}: layers of the type {kind} differ in their bases or scalings; the file has "
                             "one of each.")
        base, scaling = found[0] if found else (default, {"kind": "none"})
        whole = {**facts, "rope_base": base, "rope_scaling": scaling}
        written[kind] = Rotary(default, odd=False).write(whole)[PARAMETERS]
    return {PARAMETERS: written, **{key: written[kind]["rope_theta"] for kind, (key, _) in BASES.items()}}


HEAD_KEYS = ("classifier_activation", "classifier_bias", "decoder_bias", "classifier_pooling")
POOLS = words({"cls": "first", "mean": "mean"})


def read_head(raw: Raw, facts: Facts) -> Facts:
    """The pieces of heads."""
    activation, biased, decoder, pool = (typed(name, raw.get(name, default), type(default)) for name, default in
                                         zip(HEAD_KEYS, ("gelu", False, True, "cls"), strict=True))
    return {"head_activation": ACTIVATIONS.read(activation), "head_bias": biased, "decoder_bias": decoder,
            "pool": POOLS.read(pool)}


def write_head(facts: Facts) -> dict[str, Any]:
    """The keys of the pieces that the model's head has."""
    codecs = zip(HEAD_KEYS, ("head_activation", "head_bias", "decoder_bias", "pool"),
                 (ACTIVATIONS, PLAIN, PLAIN, POOLS), strict=True)
    return {key: codec.write(facts[fact]) for key, fact, codec in codecs if fact in facts}


HEAD = HeadKey("ModernBert")
BIASED = words({True: "all", False: "none"})
KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=50368), Read("hidden_size", "d_model", default=768),
    Read("num_hidden_layers", N_LAYERS, default=22), Read("num_attention_heads", "n_heads", default=12),
    divided_heads("num_attention_heads", "hidden_size"), Read("intermediate_size", "d_ff", default=1152),
    Read("hidden_activation", "activation", str, "gelu", codec=ACTIVATIONS),
    Read("max_position_embeddings", "context", default=8192), Read("initializer_range", "std", float, 0.02),
    Read("norm_eps", "eps", float, 1e-5), Read("norm_bias", "norm_bias", bool, False),
    Read("attention_bias", "attention_bias", bool, False, codec=BIASED), Read("mlp_bias", "mlp_bias", bool, False),
    Read("attention_dropout", "attention_dropout", float, 0.0),
    Read("embedding_dropout", "embedding_dropout", float, 0.0), Read("mlp_dropout", "dropout", float, 0.0), HEAD,
    Together(HEAD_KEYS, read_head, write_head),
    Together((WIDTH, TYPES, EVERY), read_masks, write_masks),
    Together((PARAMETERS, "rope_scaling", "global_rope_theta", "local_rope_theta"), read_rotary, write_rotary),
    *ENCODER_ONLY,
    Ignored(("reference_compile", "deterministic_flash_attn", "repad_logits_with_grad"), "how transformers runs the "
            "model, not what it computes"),
    Ignored(("sparse_prediction", "sparse_pred_ignore_index", "initializer_cutoff_factor"), "how it is trained"),
    Ignored(("sliding_window",), "half of local_attention, a copy"),
    Ignored(("layer_norm_eps", "position_embedding_type"), "left over from BERT's format; no version reads them"))


def weights(facts: Facts) -> list[Rule]:
    """All tensors; heads whose tensors the model lacks are left out. The first half of the fused matrix goes through
    the activation."""
    prefix, layer, ours = inside(facts, "model."), "layers.{layer}", "stack.layers.{layer}"
    names = {"attn_norm": "norms.0", "attn.Wo": "layers.0.output", "mlp_norm": "norms.1", "mlp.Wo": "layers.1.down"}
    fused = [Rule((f"{prefix}{layer}.mlp.Wi.{part}",), tuple(f"{ours}.layers.1.{name}.{part}"
                                                             for name in ("gate", "up")),
                  (split((facts["d_ff"],) * 2),)) for part in ("weight", "bias")]
    return [rename(f"{prefix}embeddings.tok_embeddings.weight", "embedding.tokens.weight"),
            *both(f"{prefix}embeddings.norm", "embedding.norm"),
            *both(f"{prefix}{layer}.attn.Wqkv", f"{ours}.layers.0.qkv", *reordered(facts, 2 * facts["n_heads"])),
            *(rule for a, b in names.items() for rule in both(f"{prefix}{layer}.{a}", f"{ours}.{b}")), *fused,
            *both(f"{prefix}final_norm", "norm"), *both("head.dense", "head.transform"),
            *both("head.norm", "head.norm"), rename("decoder.bias", "head.decoder.bias"),
            *both("classifier", "head.map")]


MODERNBERT = Family(
    name="modernbert", template=TEMPLATE, source="Warner et al. 2024 (arXiv:2412.13663), section 2.1",
    native=Native(
        model_type="modernbert", architecture="ModernBertForMaskedLM", architectures=HEAD.classes(), keys=KEYS,
        weights=weights, prefix="model.", junk=(UnusedTensors(r"(head|decoder)\..*", "the head of pre-training"),),
        copies=(("decoder.weight", "model.embeddings.tok_embeddings.weight"),)))
