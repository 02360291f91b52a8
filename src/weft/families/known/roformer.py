"""RoFormer: BERT's layers with rotary positions of neighbouring features, and embeddings that may be narrower."""

from __future__ import annotations

from typing import Any

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
from weft.families.keys import Fixed, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.bert import needs_types, prediction_weights
from weft.families.template import Fact, Facts, Layers
from weft.families.weights import Rule, UnusedTensors, both, rename

TURNED = ATTENTION | {"position": {"kind": "rope", "layout": "interleaved"}}
TEMPLATE = {
    "kind": "encoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
    "n_types": Fact("n_types"), "d_input": Fact("d_input"),
    "embedding": {"dropout": Fact("dropout"), "std": Fact("std"), "norm": LAYER_NORM},
    "blocks": Layers({"kind": "post", "norm": LAYER_NORM, "dropout": Fact("dropout"), "layers": [TURNED, MLP]}),
    "head": heads(MASKED, {"transform": True, "activation": Fact("activation")})}

WIDTH = "embedding_size"


def read_width(raw: Raw, facts: Facts) -> Facts:
    """The width of embeddings, where it is not the model's."""
    width = typed(WIDTH, raw.get(WIDTH), int)
    return {"d_input": None if width in (None, facts["d_model"]) else width}


def write_width(facts: Facts) -> dict[str, Any]:
    """The width in any case."""
    if facts["d_input"] == facts["d_model"]:
        raise KeyProblem("a map of embeddings to their own width; the class has one only where the widths differ.")
    return {WIDTH: facts["d_input"] or facts["d_model"]}


HEAD = HeadKey("RoFormer")
KEYS: tuple[KeyRule, ...] = (
    *body(vocab_size=50000), Together((WIDTH,), read_width, write_width),
    Read("max_position_embeddings", "context", default=1536), Read("type_vocab_size", "n_types", default=2), HEAD,
    Fixed("rotary_value", (False,), default=False, why="It would turn values too, which no position scheme here does."),
    LEFT_OVER)


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; heads whose tensors the model lacks are left out."""
    prefix = inside(facts, "roformer.")
    head = prediction_weights() if facts["head"] == "masked" else [
        *both("classifier.dense", "head.transform"),
        *both("classifier.out_proj" if facts["head"] == "pooled" else "classifier", "head.map")]
    return [rename(f"{prefix}embeddings.word_embeddings.weight", "embedding.tokens.weight"),
            rename(f"{prefix}embeddings.token_type_embeddings.weight", "types.weight"),
            *both(f"{prefix}embeddings.LayerNorm", "embedding.norm"), *both(f"{prefix}embeddings_project", "input"),
            *post_norm_weights(facts, f"{prefix}encoder"), *head]


ROFORMER = Family(
    name="roformer", template=TEMPLATE, source="Su et al. 2021 (arXiv:2104.09864), section 3 and its released code",
    native=Native(
        model_type="roformer", architecture="RoFormerForMaskedLM", architectures=HEAD.classes(), keys=KEYS,
        weights=weights, prefix="roformer.", limits=needs_types,
        junk=(UnusedTensors(r"(.*\.)?embed_positions\..*", "the sines and cosines, which the configuration gives"),
              UnusedTensors(r"(.*\.)?pooler\..*", "a map that the heads here do not use"),
              UnusedTensors(r"cls\..*", "heads of pre-training")),
        copies=(("cls.predictions.decoder.weight", "roformer.embeddings.word_embeddings.weight"),
                ("cls.predictions.decoder.bias", "cls.predictions.bias"))))
