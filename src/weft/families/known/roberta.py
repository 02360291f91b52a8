"""RoBERTa: BERT's layers, with positions counted from the padding id on, one segment, and heads with maps of their
own."""

from __future__ import annotations

from typing import Any

from weft.families.encoders import LEFT_OVER, MASKED, WINDOW, HeadKey, body, heads, inside, post_norm_weights
from weft.families.family import Family, Native
from weft.families.keys import KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.bert import TEMPLATE as BERT_TEMPLATE
from weft.families.known.bert import embedding_weights, needs_types
from weft.families.template import Fact, Facts
from weft.families.weights import Rule, UnusedTensors, both, rename

TEMPLATE = BERT_TEMPLATE | {
    "padding_id": Fact("padding"),
    "position": {"kind": "learned", "max_length": Fact("context"), "offset": Fact("offset"), "std": Fact("std")},
    "head": heads(MASKED | {"activation": "gelu"}, {"transform": True})}

LENGTH, PADDING = "max_position_embeddings", "pad_token_id"


def read_positions(raw: Raw, facts: Facts) -> Facts:
    """The first token has the position after the padding's id, so that as many rows of the table are unused."""
    rows, padding = typed(LENGTH, raw.get(LENGTH, 512), int), typed(PADDING, raw.get(PADDING, 1), int)
    if padding is None or not 0 <= padding < rows - 1:
        raise KeyProblem(f"{PADDING}: {padding}; positions are counted from the id after it on, in a table of {rows}.")
    return {"context": rows - padding - 1, "offset": padding + 1, "padding": padding}


def write_positions(facts: Facts) -> dict[str, Any]:
    """The rows of the whole table, and the padding's id."""
    if facts["padding"] != facts["offset"] - 1:
        raise KeyProblem(f"{PADDING}: {facts['padding']}, and position 0 has row {facts['offset']} of the table; the "
                         "class begins to count at the row after the padding's, and counts no token with its id.")
    return {LENGTH: facts["context"] + facts["offset"], PADDING: facts["padding"]}


HEAD = HeadKey("Roberta")
KEYS: tuple[KeyRule, ...] = (
    *body(vocab_size=50265), Together((LENGTH, PADDING), read_positions, write_positions), WINDOW,
    Read("type_vocab_size", "n_types", default=2), HEAD, LEFT_OVER)


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; heads whose tensors the model lacks are left out."""
    prefix = inside(facts, "roberta.")
    return [*embedding_weights(prefix), *post_norm_weights(facts, f"{prefix}encoder"), *head_weights(facts)]


def head_weights(facts: Facts) -> list[Rule]:
    """The tensors of the head."""
    if facts["head"] == "masked":
        return [*both("lm_head.dense", "head.transform"), *both("lm_head.layer_norm", "head.norm"),
                rename("lm_head.bias", "head.decoder.bias")]
    if facts["head"] == "pooled":
        return [*both("classifier.dense", "head.transform"), *both("classifier.out_proj", "head.map")]
    return both("classifier", "head.map")


ROBERTA = Family(
    name="roberta", template=TEMPLATE, source="Liu et al. 2019 (arXiv:1907.11692), section 4",
    native=Native(
        model_type="roberta", architecture="RobertaForMaskedLM", architectures=HEAD.classes(), keys=KEYS,
        weights=weights, prefix="roberta.", limits=needs_types,
        junk=(UnusedTensors(r"(.*\.)?pooler\..*", "a map that the heads here do not use"),
              UnusedTensors(r"lm_head\..*", "the head of pre-training")),
        copies=(("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
                ("lm_head.decoder.bias", "lm_head.bias"))))
