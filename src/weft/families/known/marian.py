"""Marian: fixed positions, all sines before all cosines, norms after the layers, one embedding, a bias of logits."""

from __future__ import annotations

from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Fixed, KeyProblem, KeyRule, Raw, Together, typed
from weft.families.known.bart import COPIES, shared_rules, sizes, template, whole
from weft.families.template import Facts
from weft.families.weights import UnusedTensors

TARGETS = "decoder_vocab_size"


def read_targets(raw: Raw, facts: Facts) -> Facts:
    """Sources and targets have one vocabulary."""
    size = typed(TARGETS, raw.get(TARGETS), int)
    if size is not None and size != facts["vocab_size"]:
        raise KeyProblem(f"{TARGETS}: {size} ids of targets and {facts['vocab_size']} of sources, but only models with "
                         "one vocabulary can be read.")
    return {}


def write_targets(facts: Facts) -> dict[str, Any]:
    """The vocabulary again."""
    return {TARGETS: facts["vocab_size"]}


KEYS: tuple[KeyRule, ...] = (
    *sizes(58101, "gelu"), Together((TARGETS,), read_targets, write_targets),
    Fixed("share_encoder_decoder_embeddings", (True, None), default=True, why="Sources and targets share embeddings."),
    whole("normalize_embedding", False, "Its embeddings are not normalised."),
    whole("normalize_before", False, "Its norms follow the layers."),
    whole("add_final_layer_norm", False, "Its last block ends with a norm."),
    whole("add_bias_logits", False, "The bias of its logits is the tensor final_logits_bias."),
    whole("static_position_embeddings", True, "Its positions are fixed."))

MARIAN = Family(
    name="marian", template=template({"kind": "sinusoidal", "layout": "halves"}, {"kind": "none"}),
    source="Junczys-Dowmunt et al. 2018 (arXiv:1804.00344); Tiedemann and Thottingal 2020 (OPUS-MT)",
    native=Native(
        model_type="marian", architecture="MarianMTModel", architectures=("MarianModel",), keys=KEYS,
        weights=shared_rules, prefix="model.", takes_source=True, copies=COPIES,
        junk=(UnusedTensors(r"(model\.)?(encoder|decoder)\.embed_positions\.weight", "sines and cosines, which the "
                            "configuration gives"),)))
