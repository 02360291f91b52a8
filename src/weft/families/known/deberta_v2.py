"""DeBERTa v2 and v3: disentangled attention with logarithmic buckets of distances, whose vectors all layers share."""

from __future__ import annotations

from typing import Any

from weft.families.common import ACTIVATIONS
from weft.families.encoders import (
    ATTENTION,
    LAYER_NORM,
    LEFT_OVER,
    MASKED,
    MLP,
    HeadKey,
    body,
    heads,
    inside,
    post_norm_weights,
)
from weft.families.family import Family, Native
from weft.families.keys import KEPT, Fixed, Ignored, Kept, KeyProblem, KeyRule, Raw, Together, typed
from weft.families.known.bert import prediction_weights
from weft.families.template import Fact, Facts, Layers, TemplateChoice
from weft.families.tensor_steps import fuse
from weft.families.weights import Rule, UnusedTensors, both, rename

RELATIVE = "relative"
"""The name of the vectors that all layers share."""


def template(attention: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """BERT's layers with such attention.

    Args:
        attention: fields of the attention besides BERT's.
    """
    scheme = {"kind": "deberta", "table": {"shared": RELATIVE}, "terms": Fact("terms"), **fields}
    layers = [ATTENTION | attention | {"position": scheme}, MLP]
    return {
        "kind": "encoder", "vocab_size": Fact("vocab_size"), "context": Fact("window"), "d_model": Fact("d_model"),
        "n_types": Fact("n_types"), "embedding": {"dropout": Fact("dropout"), "std": Fact("std"), "norm": LAYER_NORM,
                                                  "d_embedding": Fact("d_embedding")},
        "position": TemplateChoice("absolute", {True: {"kind": "learned", "max_length": Fact("context"),
                                                       "std": Fact("std")},
                                                False: {"kind": "none"}}),
        "shared": {RELATIVE: {"kind": "position_table", "rows": Fact("rows"), "std": Fact("std"),
                              "norm": TemplateChoice(
            "normed", {True: LAYER_NORM, False: None})}},
        "blocks": Layers({"kind": "post", "norm": LAYER_NORM, "dropout": Fact("dropout"), "layers": layers}),
        "head": heads(MASKED, {"transform": True, "activation": Fact("pooler_activation")})}


TERMS = {"both": ["p2c", "c2p"], "c2p": ["c2p"], "p2c": ["p2c"]}
TYPE, BUCKETS, LONGEST, LENGTH = ("pos_att_type", "position_buckets", "max_relative_positions",
                                  "max_position_embeddings")
NARROW, ABSOLUTE, NORMED, SHARED = "embedding_size", "position_biased_input", "norm_rel_ebd", "share_att_key"


def read_terms(raw: Raw, facts: Facts) -> Facts:
    """The terms, as a list or as words with bars between them."""
    given = raw.get(TYPE)
    words = [word.strip() for word in given.lower().split("|")] if isinstance(given, str) else typed(TYPE, given, list)
    found = next((name for name, terms in TERMS.items() if sorted(words or []) == sorted(terms)), None)
    if found is None:
        raise KeyProblem(f"{TYPE}: {given!r}, but only c2p, p2c and both can be read.")
    return {"terms": found}


def read_distances(raw: Raw, facts: Facts) -> Facts:
    """The rows of the table of distances, and the distance of the last bucket."""
    length, longest, buckets = (typed(key, raw.get(key, default), int)
                                for key, default in ((LENGTH, 512), (LONGEST, -1), (BUCKETS, -1)))
    longest = length if longest < 1 else longest
    return {"context": length, "window": length, "rows": 2 * (buckets if buckets > 0 else longest),
            "longest": longest if buckets > 0 else None}


def write_distances(facts: Facts) -> dict[str, Any]:
    """The longest position, distance, and the number of buckets."""
    half, longest = facts["rows"] // 2, facts["longest"]
    return {LENGTH: facts["context"] if facts["absolute"] else facts["window"],
            LONGEST: half if longest is None else longest, BUCKETS: -1 if longest is None else half}


def read_inputs(raw: Raw, facts: Facts) -> Facts:
    """The inputs that are added to the embeddings of tokens, and their width."""
    width, absolute = typed(NARROW, raw.get(NARROW), int), typed(ABSOLUTE, raw.get(ABSOLUTE, True), bool)
    types = typed("type_vocab_size", raw.get("type_vocab_size", 0), int)
    narrow = None if width in (None, facts["d_model"]) else width
    if narrow is not None and (absolute or types):
        raise KeyProblem(f"{NARROW}: {width}, with positions or segments that are added before the map to hidden_size; "
                         "here they are added after it.")
    return {"d_embedding": narrow, "absolute": absolute, "n_types": types}


def write_inputs(facts: Facts) -> dict[str, Any]:
    """The keys of the same."""
    if facts["d_embedding"] is not None and (facts["absolute"] or facts["n_types"]):
        raise KeyProblem(f"{NARROW}: positions or segments are added after the map to hidden_size; the class adds them "
                         "before.")
    return {NARROW: facts["d_embedding"] or facts["d_model"], ABSOLUTE: facts["absolute"],
            "type_vocab_size": facts["n_types"]}


def read_projections(raw: Raw, facts: Facts) -> Facts:
    """Whether vectors of distances have maps of their own."""
    normed = [word.strip() for word in str(raw.get(NORMED, "none")).lower().split("|")]
    shared = typed(SHARED, raw.get(SHARED, False), bool)
    return {"projections": "content" if shared else "own_biased", "normed": "layer_norm" in normed}


def write_projections(facts: Facts) -> dict[str, Any]:
    """The keys of the same."""
    if facts["projections"] == "own":
        raise KeyProblem(f"{SHARED}: keys of distances without a bias, which DeBERTa v1 has.")
    return {SHARED: facts["projections"] == "content", NORMED: "layer_norm" if facts["normed"] else "none"}


POOLER = Together(
    ("pooler_hidden_act",),
    lambda raw, facts: {"pooler_activation": ACTIVATIONS.read(raw.get("pooler_hidden_act", "gelu"))},
    lambda facts: ({"pooler_hidden_act": ACTIVATIONS.write(facts["pooler_activation"])}
                   if "pooler_activation" in facts else {}))


def read_pooler_width(raw: Raw, facts: Facts) -> Facts:
    """It must be the model's."""
    width = raw.get("pooler_hidden_size")
    if width not in (None, facts["d_model"]):
        raise KeyProblem(f"pooler_hidden_size: {width}, but only hidden_size, {facts['d_model']}, can be read.")
    return {}


SHARED_KEYS: tuple[KeyRule, ...] = (
    Fixed("relative_attention", (True,), default=False, why="Without it this is BERT's attention."),
    Together((TYPE,), read_terms, lambda facts: {TYPE: TERMS[facts["terms"]]}),
    Together((NARROW, ABSOLUTE, "type_vocab_size"), read_inputs, write_inputs), POOLER,
    Together(("pooler_hidden_size",), read_pooler_width, lambda facts: {"pooler_hidden_size": facts["d_model"]}),
    Kept("legacy", left_out=True),
    Ignored(("pooler_dropout", "cls_dropout"), "dropout before and after the pooler, for training"),
    LEFT_OVER)
"""Keys that v1 has too."""

HEAD = HeadKey("DebertaV2")
KEYS: tuple[KeyRule, ...] = (
    *body(vocab_size=128100, d_model=1536, n_layers=24, n_heads=24, d_ff=6144, eps=1e-7), *SHARED_KEYS, HEAD,
    Together((LENGTH, LONGEST, BUCKETS), read_distances, write_distances),
    Together((SHARED, NORMED), read_projections, write_projections),
    Fixed("conv_kernel_size", (0, None), default=0, why="A convolution beside the first layer, which v2-xlarge has and "
          "Weft has not."),
    Ignored(("conv_act", "conv_groups"), "of the convolution beside the first layer, which is refused"))


def outer_weights(facts: Facts, *, legacy: bool) -> list[Rule]:
    """Embeddings, the table of distances, and heads. The head for masked tokens has other names where the configuration
    has ``legacy: false``, as in the files that its authors published."""
    prefix = inside(facts, "deberta.")
    theirs, tokens = f"{prefix}embeddings", "lm_predictions.lm_head"
    masked = prediction_weights() if legacy else [
        *both(f"{tokens}.dense", "head.transform"), *both(f"{tokens}.LayerNorm", "head.norm"),
        rename(f"{tokens}.bias", "head.decoder.bias")]
    head = masked if facts["head"] == "masked" else [*both("pooler.dense", "head.transform"),
                                                     *both("classifier", "head.map")]
    return [rename(f"{theirs}.word_embeddings.weight", "embedding.tokens.weight"),
            rename(f"{theirs}.position_embeddings.weight", "embedding.position.table"),
            rename(f"{theirs}.token_type_embeddings.weight", "types.weight"),
            rename(f"{theirs}.embed_proj.weight", "embedding.projection.weight"),
            *both(f"{theirs}.LayerNorm", "embedding.norm"),
            rename(f"{prefix}encoder.rel_embeddings.weight", f"shared.{RELATIVE}.vectors"),
            *both(f"{prefix}encoder.LayerNorm", f"shared.{RELATIVE}.norm"),
            *post_norm_weights(facts, f"{prefix}encoder", attention=False), *head]


def weights(facts: Facts, *, published: bool = False) -> list[Rule]:
    """Return the rules of all tensors; heads whose tensors the model lacks are left out."""
    legacy = facts.get(KEPT, {}).get("legacy", True) is not published
    layer, ours = f"{inside(facts, 'deberta.')}encoder.layer.{{layer}}.attention.self", "stack.layers.{layer}.layers.0"
    width = facts["d_model"]
    fused = [Rule(tuple(f"{layer}.{name}_proj.{part}" for name in ("query", "key", "value")), (f"{ours}.qkv.{part}",),
                  (fuse((width,) * 3),)) for part in ("weight", "bias")]
    return [*outer_weights(facts, legacy=legacy), *fused, *both(f"{layer}.pos_key_proj", f"{ours}.position.k"),
            *both(f"{layer}.pos_query_proj", f"{ours}.position.q")]


JUNK = (UnusedTensors(r"(.*\.)?embeddings\.position_embeddings\..*", "positions that position_biased_input leaves out"),
        UnusedTensors(r"(.*\.)?pooler\..*", "a map that this model's head does not use"),
        UnusedTensors(r"(cls|lm_predictions|mask_predictions)\..*", "heads of pre-training"))
COPIES = (("cls.predictions.decoder.weight", "deberta.embeddings.word_embeddings.weight"),
          ("cls.predictions.decoder.bias", "cls.predictions.bias"))

DEBERTA_V2 = Family(
    name="deberta_v2", template=template({}, max_distance=Fact("longest"), projections=Fact("projections")),
    source="He et al. 2021 (arXiv:2006.03654), section 3 and appendix; He et al. 2023 (arXiv:2111.09543)",
    native=Native(
        model_type="deberta-v2", architecture="DebertaV2ForMaskedLM", architectures=HEAD.classes(), keys=KEYS,
        weights=weights, otherwise=(lambda facts: weights(facts, published=True),), prefix="deberta.", junk=JUNK,
        copies=COPIES))
