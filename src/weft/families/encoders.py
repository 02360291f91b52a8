"""The common readers of families of encoders: which head a file has, and the keys of BERT's relatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.families.common import ACTIVATIONS, divided_heads
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.template import N_LAYERS, Fact, Facts, TemplateChoice
from weft.families.tensor_steps import fuse
from weft.families.weights import Rule, both

ENDS: Mapping[str, str] = {"masked": "ForMaskedLM", "pooled": "ForSequenceClassification",
                                "per_token": "ForTokenClassification", "none": "Model"}
"""The end of the name of the class with each head."""

LABELS = ("id2label", "label2id", "num_labels", "_num_labels", "problem_type", "classifier_dropout",
          "classifier_dropout_prob")
REGRESSION = "regression"

CLASSES = {"n_classes": Fact("n_classes"), "labels": Fact("labels"), "dropout": Fact("head_dropout")}
VALUES = {"n_values": Fact("n_values")}


def heads(masked: Mapping[str, Any], pooled: Mapping[str, Any],
          per_token: Mapping[str, Any] | None = None) -> TemplateChoice:
    """The template of a model's head: that of masked tokens, of rows, of tokens, or none.

    Args:
        masked: the family's fields of ``masked_token``.
        pooled: of ``pooled``.
        per_token: of ``per_token``.
    """
    return TemplateChoice("head", {
        "masked": {"kind": "masked_token", "std": Fact("std"), **masked},
        "pooled": {"kind": "pooled", **CLASSES, **VALUES, **pooled},
        "per_token": {"kind": "per_token", **CLASSES, **(per_token or {})}, "none": None})


@dataclass(frozen=True)
class HeadKey(KeyRule):
    """Which head a model has, from ``architectures``, and its classes. ``dropout`` must have been read before.

    Attributes:
        stem: of the names of the family's classes.
        also: further classes whose head predicts masked tokens.
    """

    stem: str
    also: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return ("architectures", *LABELS)

    def read(self, raw: Raw, facts: Facts) -> Facts:
        named = [str(name) for name in typed("architectures", raw.get("architectures"), list) or ()]
        head = next((head for head, end in ENDS.items() if f"{self.stem}{end}" in named), "masked")
        dropout = next((typed(name, raw[name], float) for name in LABELS[-2:] if raw.get(name) is not None),
                       facts.get("dropout", 0.0))
        return {"head": head, "head_dropout": float(dropout), **(_classes(raw, head) if head in ("pooled", "per_token")
                                                                 else {})}

    def write(self, facts: Facts) -> dict[str, Any]:
        named = {"architectures": [f"{self.stem}{ENDS[facts['head']]}"]}
        if facts["head"] not in ("pooled", "per_token"):
            return named
        values = facts.get("n_values")
        names = facts["labels"] or [f"LABEL_{index}" for index in range(values or facts["n_classes"])]
        return {**named, "classifier_dropout": facts.get("head_dropout"),
                "id2label": {str(index): name for index, name in enumerate(names)},
                "label2id": {name: index for index, name in enumerate(names)},
                "problem_type": REGRESSION if values else None}

    def classes(self) -> tuple[str, ...]:
        """The names of all classes that can be read."""
        return (*(f"{self.stem}{end}" for end in ENDS.values()), *self.also)


def _classes(raw: Raw, head: str) -> Facts:
    """The classes or values of a head, as `transformers` counts them."""
    given = typed("id2label", raw.get("id2label"), dict) or {}
    count = len(given) or next((typed(name, raw[name], int) for name in ("num_labels", "_num_labels")
                                if raw.get(name) is not None), 2)
    kind = raw.get("problem_type")
    if kind not in (None, REGRESSION, "single_label_classification"):
        raise KeyProblem(f"problem_type: {kind!r}, but only {REGRESSION} and single_label_classification can be read: "
                         "a head's scores are of classes that exclude each other, or values.")
    if kind == REGRESSION or count == 1:
        if head == "per_token":
            raise KeyProblem("id2label: a single class, or values, for each token, which no head here gives.")
        return {"n_values": count, "n_classes": None, "labels": []}
    names = [str(given.get(str(index), given.get(index))) for index in range(count)] if given else []
    unnamed = names in ([], [f"LABEL_{index}" for index in range(count)])
    return {"n_values": None, "n_classes": count if unnamed else None, "labels": [] if unnamed else names}


ENCODER_ONLY: tuple[KeyRule, ...] = (
    Fixed("is_decoder", (False,), default=False, why="It would attend to earlier tokens alone."),
    Fixed("is_causal", (False, None), default=False, why="It would attend to earlier tokens alone."),
    Fixed("tie_word_embeddings", (True,), default=True, why="The head that predicts tokens shares their embedding."))
"""Keys of every family of encoders."""


def body(*, vocab_size: int, d_model: int = 768, n_layers: int = 12, n_heads: int = 12, d_ff: int = 3072,
         eps: float = 1e-12) -> tuple[KeyRule, ...]:
    """The keys that BERT's relatives share, with their defaults in `transformers`."""
    return (
        Read("vocab_size", "vocab_size", default=vocab_size), Read("hidden_size", "d_model", default=d_model),
        Read("num_hidden_layers", N_LAYERS, default=n_layers),
        Read("num_attention_heads", "n_heads", default=n_heads), divided_heads("num_attention_heads", "hidden_size"),
        Read("intermediate_size", "d_ff", default=d_ff),
        Read("hidden_act", "activation", str, "gelu", codec=ACTIVATIONS),
        Read("hidden_dropout_prob", "dropout", float, 0.1),
        Read("attention_probs_dropout_prob", "attention_dropout", float, 0.1),
        Read("initializer_range", "std", float, 0.02), Read("layer_norm_eps", "eps", float, eps),
        Fixed("position_embedding_type", ("absolute", None), default="absolute",
              why="Other kinds of positions are other families."), *ENCODER_ONLY)


WINDOW: KeyRule = Together((), lambda raw, facts: {"window": facts["context"]}, lambda facts: {})
"""The training window, which may be shorter than the table of positions and is not in the file."""

LEFT_OVER = Ignored(("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
                     "pooler_size_per_head", "pooler_type", "model_name", "attention_type"),
                    "left over from the conversion of early checkpoints; no version reads it")

LAYER_NORM = {"kind": "layernorm", "eps": Fact("eps")}
ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "bias": "all",
             "mask": "bidirectional", "scores": {"dropout": Fact("attention_dropout")}}
MLP = {"kind": "mlp", "d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": True}
MASKED = {"activation": Fact("activation"), "norm": LAYER_NORM}


def post_norm_weights(facts: Facts, theirs: str, *, attention: bool = True) -> list[Rule]:
    """The tensors of BERT's layers.

    Args:
        theirs: the name of the encoder in the file.
        attention: whether to include queries, keys and values, which are separate in the file.
    """
    layer, ours, width = f"{theirs}.layer.{{layer}}", "stack.layers.{layer}", facts["d_model"]
    fused = [Rule(tuple(f"{layer}.attention.self.{name}.{part}" for name in ("query", "key", "value")),
                  (f"{ours}.layers.0.qkv.{part}",), (fuse((width,) * 3),)) for part in ("weight", "bias")]
    pairs = {"attention.output.dense": "layers.0.output", "attention.output.LayerNorm": "norms.0",
             "intermediate.dense": "layers.1.up", "output.dense": "layers.1.down", "output.LayerNorm": "norms.1"}
    return [*(fused if attention else []),
            *(rule for a, b in pairs.items() for rule in both(f"{layer}.{a}", f"{ours}.{b}"))]


def inside(facts: Facts, prefix: str) -> str:
    """The prefix of the names of the bare model's tensors: empty where the file is of the bare model."""
    return "" if facts["head"] == "none" else prefix
