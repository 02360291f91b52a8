"""Longformer: RoBERTa with a window in every layer, and global tokens with projections of their own."""

from __future__ import annotations

from typing import Any

from weft.families.encoders import (
    ATTENTION,
    LAYER_NORM,
    LEFT_OVER,
    MLP,
    WINDOW,
    HeadKey,
    body,
    inside,
    post_norm_weights,
)
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, Kept, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.bert import embedding_weights, needs_types
from weft.families.known.roberta import LENGTH, PADDING, head_weights, read_positions, write_positions
from weft.families.known.roberta import TEMPLATE as ROBERTA_TEMPLATE
from weft.families.template import N_LAYERS, Fact, Facts, Layers
from weft.families.tensor_steps import fuse
from weft.families.weights import Rule, UnusedTensors
from weft.masks import SymmetricWindow, parse_mask

GLOBAL = ATTENTION | {"kind": "global_attention", "mask": Fact("masks", each=True), "global_tokens": Fact("tokens")}
TEMPLATE = ROBERTA_TEMPLATE | {
    "blocks": Layers({"kind": "post", "norm": LAYER_NORM, "dropout": Fact("dropout"), "layers": [GLOBAL, MLP]})}
WIDTHS = "attention_window"


def read_windows(raw: Raw, facts: Facts) -> Facts:
    """One window a layer, of all its tokens but the query's own; one number is that of every layer."""
    given = raw.get(WIDTHS, 512)
    widths = typed(WIDTHS, given, list) if isinstance(given, list) else [typed(WIDTHS, given, int)] * facts[N_LAYERS]
    if len(widths) != facts[N_LAYERS]:
        raise KeyProblem(f"{WIDTHS}: {len(widths)} windows for {facts[N_LAYERS]} layers.")
    odd = [width for width in widths if not isinstance(width, int) or width < 2 or width % 2]
    if odd:
        raise KeyProblem(f"{WIDTHS}: {odd[0]!r}, but it counts equally many tokens on both sides: even, and not 0.")
    return {"masks": [f"symmetric_window({width // 2}, {width // 2})" for width in widths]}


def write_windows(facts: Facts) -> dict[str, Any]:
    """The list of windows."""
    masks = [parse_mask(mask) for mask in facts["masks"]]
    for mask in masks:
        if mask != SymmetricWindow(width := max(mask.reach() or 1, 3) - 1, width):
            raise KeyProblem(f"cannot express the mask {mask!r}; only windows of equally many tokens on both sides, at "
                             "least two, with fewer of which its class fails.")
    return {WIDTHS: [2 * ((mask.reach() or 1) - 1) for mask in masks]}


def read_tokens(raw: Raw, facts: Facts) -> Facts:
    """The class that classifies rows makes their first token global where no other is marked; the others none."""
    return {"tokens": [0] if facts["head"] == "pooled" else None}


def write_tokens(facts: Facts) -> dict[str, Any]:
    """Nothing, where the tokens are those of the class."""
    usual = read_tokens({}, facts)["tokens"]
    if facts["tokens"] != usual:
        raise KeyProblem(f"global tokens {facts['tokens']}, but with the head {facts['head']!r} those of its class are "
                         f"{'marked by each call' if usual is None else usual}, and the file has no key for others.")
    return {}


HEAD = HeadKey("Longformer")
KEYS: tuple[KeyRule, ...] = (
    *body(vocab_size=30522), Together((LENGTH, PADDING), read_positions, write_positions), WINDOW,
    Read("type_vocab_size", "n_types", default=2), HEAD, Together((WIDTHS,), read_windows, write_windows),
    Together((), read_tokens, write_tokens), Kept("sep_token_id"),
    Fixed("attention_mode", ("longformer", None), default="longformer", why="Other modes are not this model."),
    Ignored(("ignore_attention_mask", "gradient_checkpointing", "onnx_export"),
            "read by no version, or only while training or exporting"), LEFT_OVER)


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; heads whose tensors the model lacks are left out."""
    prefix = inside(facts, "longformer.")
    theirs, ours = f"{prefix}encoder.layer.{{layer}}.attention.self", "stack.layers.{layer}.layers.0.global_qkv"
    own = [Rule(tuple(f"{theirs}.{name}_global.{part}" for name in ("query", "key", "value")), (f"{ours}.{part}",),
                (fuse((facts["d_model"],) * 3),)) for part in ("weight", "bias")]
    return [*embedding_weights(prefix), *post_norm_weights(facts, f"{prefix}encoder"), *own, *head_weights(facts)]


LONGFORMER = Family(
    name="longformer", template=TEMPLATE, source="Beltagy et al. 2020 (arXiv:2004.05150), sections 3 and 5",
    native=Native(
        model_type="longformer", architecture="LongformerForMaskedLM", architectures=HEAD.classes(), keys=KEYS,
        weights=weights, prefix="longformer.", limits=needs_types,
        junk=(UnusedTensors(r"(.*\.)?pooler\..*", "a map that the heads here do not use"),
              UnusedTensors(r"lm_head\..*", "the head of pre-training")),
        copies=(("lm_head.decoder.weight", "longformer.embeddings.word_embeddings.weight"),
                ("lm_head.decoder.bias", "lm_head.bias"))))
