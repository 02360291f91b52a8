"""BERT: learned positions and segments, norms after each layer, and a norm of the embeddings."""

from __future__ import annotations

from weft.families.encoders import (
    ATTENTION,
    LAYER_NORM,
    LEFT_OVER,
    MASKED,
    MLP,
    WINDOW,
    HeadKey,
    body,
    heads,
    inside,
    post_norm_weights,
)
from weft.families.family import Family, Native
from weft.families.keys import KeyRule, Read
from weft.families.template import Fact, Facts, Layers
from weft.families.weights import Rule, UnusedTensors, both, rename

TEMPLATE = {
    "kind": "encoder", "vocab_size": Fact("vocab_size"), "context": Fact("window"), "d_model": Fact("d_model"),
    "n_types": Fact("n_types"),
    "embedding": {"dropout": Fact("dropout"), "std": Fact("std"), "norm": LAYER_NORM},
    "position": {"kind": "learned", "max_length": Fact("context"), "std": Fact("std")},
    "blocks": Layers({"kind": "post", "norm": LAYER_NORM, "dropout": Fact("dropout"), "layers": [ATTENTION, MLP]}),
    "head": heads(MASKED, {"transform": True})}

HEAD = HeadKey("Bert", also=("BertForPreTraining",))
KEYS: tuple[KeyRule, ...] = (
    *body(vocab_size=30522), Read("max_position_embeddings", "context", default=512), WINDOW,
    Read("type_vocab_size", "n_types", default=2), HEAD, LEFT_OVER)


def embedding_weights(prefix: str) -> list[Rule]:
    """The tensors of embeddings, with learned positions."""
    theirs = f"{prefix}embeddings"
    return [rename(f"{theirs}.word_embeddings.weight", "embedding.tokens.weight"),
            rename(f"{theirs}.position_embeddings.weight", "embedding.position.table"),
            rename(f"{theirs}.token_type_embeddings.weight", "types.weight"),
            *both(f"{theirs}.LayerNorm", "embedding.norm")]


def prediction_weights() -> list[Rule]:
    """The tensors of BERT's head for masked tokens."""
    theirs = "cls.predictions"
    return [*both(f"{theirs}.transform.dense", "head.transform"), *both(f"{theirs}.transform.LayerNorm", "head.norm"),
            rename(f"{theirs}.bias", "head.decoder.bias")]


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; heads whose tensors the model lacks are left out."""
    prefix = inside(facts, "bert.")
    head = prediction_weights() if facts["head"] == "masked" else [
        *both(f"{prefix}pooler.dense", "head.transform"), *both("classifier", "head.map")]
    return [*embedding_weights(prefix), *post_norm_weights(facts, f"{prefix}encoder"), *head]


def needs_types(facts: Facts) -> list[str]:
    """BERT's class has a table of segments in any case."""
    return [] if facts["n_types"] else ["n_types: 0, and the class adds an embedding of the segment to each token."]


OTHER_HEADS = (UnusedTensors(r"(.*\.)?pooler\..*", "the map before the task of next sentences"),
               UnusedTensors(r"cls\..*", "heads of pre-training"))

BERT = Family(
    name="bert", template=TEMPLATE, source="Devlin et al. 2019 (arXiv:1810.04805), section 3",
    native=Native(
        model_type="bert", architecture="BertForMaskedLM", architectures=HEAD.classes(), keys=KEYS, weights=weights,
        prefix="bert.", junk=OTHER_HEADS, limits=needs_types,
        copies=(("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
                ("cls.predictions.decoder.bias", "cls.predictions.bias"))))
