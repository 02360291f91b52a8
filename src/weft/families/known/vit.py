"""The Vision Transformer: patches, a class token, learned positions, norms before each layer and after the last."""

from __future__ import annotations

from typing import Any

from weft.families.common import ACTIVATIONS, divided_heads
from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.template import N_LAYERS, Fact, Facts, Layers, TemplateChoice
from weft.families.tensor_steps import fuse, reshape
from weft.families.weights import Rule, UnusedTensors, both, rename

WITH_CLASSES, BARE = "ViTForImageClassification", "ViTModel"
LAYER_NORM = {"kind": "layernorm", "eps": Fact("eps")}
ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "mask": "bidirectional",
             "bias": TemplateChoice("qkv_bias", {True: "all", False: "output"}),
             "scores": {"dropout": Fact("attention_dropout")}}
MLP = {"kind": "mlp", "d_ff": Fact("d_ff"), "activation": Fact("activation"), "bias": True}
TEMPLATE = {
    "kind": "image_encoder", "context": Fact("context"), "d_model": Fact("d_model"), "dropout": Fact("dropout"),
    "image": {"height": Fact("height"), "width": Fact("width"), "channels": Fact("channels"), "pixel_scaling": "none"},
    "patch": [Fact("patch_height"), Fact("patch_width")], "class_token": True,
    "position": {"kind": "learned", "max_length": Fact("context"), "std": Fact("std")},
    "blocks": Layers({"kind": "pre", "norm": LAYER_NORM, "dropout": Fact("dropout"), "layers": [ATTENTION, MLP]}),
    "norm": LAYER_NORM,
    "head": TemplateChoice("head", {"classes": {"kind": "pooled", "n_classes": Fact("n_classes"),
                                                "labels": Fact("labels")},
                                    "none": None})}


def read_sizes(raw: Raw, facts: Facts) -> Facts:
    """Height and width of images and patches, each given as one number or as both, and the tokens of an image."""
    sizes = list[list[int]]()
    for name, usual in (("image_size", 224), ("patch_size", 16)):
        value = raw.get(name, usual)
        size = value if isinstance(value, list) else [value, value]
        if len(size) != 2 or not all(type(each) is int and each > 0 for each in size):
            raise KeyProblem(f"{name}: {value!r} is neither a positive whole number nor two.")
        sizes.append(size)
    image, patch = sizes
    for whole, part in zip(image, patch, strict=True):
        if whole % part:
            raise KeyProblem(f"patch_size: {part} does not divide image_size {whole}.")
    tokens = (image[0] // patch[0]) * (image[1] // patch[1]) + 1
    return {"height": image[0], "width": image[1], "patch_height": patch[0], "patch_width": patch[1], "context": tokens}


def write_sizes(facts: Facts) -> dict[str, Any]:
    """One number where both are equal, else both."""
    pairs = {"image_size": ("height", "width"), "patch_size": ("patch_height", "patch_width")}
    found = {key: [facts[name] for name in names] for key, names in pairs.items()}
    tokens = (facts["height"] // facts["patch_height"]) * (facts["width"] // facts["patch_width"]) + 1
    if facts["context"] != tokens:
        raise KeyProblem(f"the table of positions has {facts['context']} rows; the file's has one for each of an "
                         f"image's {tokens} tokens.")
    return {key: pair[0] if pair[0] == pair[1] else pair for key, pair in found.items()}


def read_head(raw: Raw, facts: Facts) -> Facts:
    """Whether a model has a head for classes, from ``architectures``, and the classes' names."""
    if WITH_CLASSES not in (raw.get("architectures") or []):
        return {"head": "none"}
    given = typed("id2label", raw.get("id2label"), dict) or {}
    count = len(given) or int(raw.get("num_labels") or 2)
    names = [str(given.get(str(index), given.get(index))) for index in range(count)] if given else []
    unnamed = names in ([], unnamed_classes(count))
    if raw.get("problem_type") not in (None, "single_label_classification") or count < 2:
        raise KeyProblem("problem_type or id2label: only a head for two or more classes that exclude each other "
                         "can be read.")
    if len(set(names)) < len(names):  # ImageNet has two classes called "crane" and two called "maillot"
        names = [f"{name} ({index})" if names.count(name) > 1 else name for index, name in enumerate(names)]
    return {"head": "classes", "n_classes": count if unnamed else None, "labels": [] if unnamed else names}


def write_head(facts: Facts) -> dict[str, Any]:
    """The class with that head, and its classes."""
    if facts["head"] == "none":
        return {"architectures": [BARE]}
    names = facts["labels"] or unnamed_classes(facts["n_classes"])
    return {"architectures": [WITH_CLASSES], "id2label": {str(index): name for index, name in enumerate(names)},
            "label2id": {name: index for index, name in enumerate(names)}}


def unnamed_classes(count: int) -> list[str]:
    """The names that `transformers` gives to classes without names."""
    return [f"LABEL_{index}" for index in range(count)]


KEYS: tuple[KeyRule, ...] = (
    Read("hidden_size", "d_model", default=768), Read("num_hidden_layers", N_LAYERS, default=12),
    Read("num_attention_heads", "n_heads", default=12), divided_heads("num_attention_heads", "hidden_size"),
    Read("intermediate_size", "d_ff", default=3072), Read("hidden_act", "activation", str, "gelu", codec=ACTIVATIONS),
    Read("hidden_dropout_prob", "dropout", float, 0.0),
    Read("attention_probs_dropout_prob", "attention_dropout", float, 0.0),
    Read("initializer_range", "std", float, 0.02), Read("layer_norm_eps", "eps", float, 1e-12),
    Read("num_channels", "channels", default=3), Read("qkv_bias", "qkv_bias", bool, True),
    Together(("image_size", "patch_size"), read_sizes, write_sizes),
    Together(("architectures", "id2label", "label2id", "num_labels", "problem_type"), read_head, write_head),
    Fixed("is_causal", (False, None), default=False, why="Patches of an image have no order in time."),
    Ignored(("encoder_stride",), "for the task of filling in masked patches"),
    Ignored(("pooler_output_size", "pooler_act"), "for the pooled vector of the bare model, which its hidden vectors "
            "do not depend on"))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; a bare model's have no prefix."""
    prefix, width = "" if facts["head"] == "none" else "vit.", facts["d_model"]
    theirs, ours = f"{prefix}encoder.layer.{{layer}}", "stack.layers.{layer}"
    patch = (facts["channels"], facts["patch_height"], facts["patch_width"])
    fused = [Rule(tuple(f"{theirs}.attention.attention.{name}.{part}" for name in ("query", "key", "value")),
                  (f"{ours}.layers.0.qkv.{part}",), (fuse((width,) * 3),)) for part in ("weight", "bias")]
    pairs = {"attention.output.dense": "layers.0.output", "intermediate.dense": "layers.1.up",
             "output.dense": "layers.1.down", "layernorm_before": "norms.0", "layernorm_after": "norms.1"}
    embeddings = f"{prefix}embeddings"
    projection = "patch_embeddings.projection"
    return [
        rename(f"{embeddings}.cls_token", "embedding.first", reshape((1, 1, width), (width,))),
        rename(f"{embeddings}.position_embeddings", "embedding.position.table",
               reshape((1, facts["context"], width), (facts["context"], width))),
        rename(f"{embeddings}.{projection}.weight", "embedding.projection.weight",
               reshape((width, *patch), (width, patch[0] * patch[1] * patch[2]))),
        rename(f"{embeddings}.{projection}.bias", "embedding.projection.bias"), *fused,
        *(rule for a, b in pairs.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}")),
        *both(f"{prefix}layernorm", "norm"), *both("classifier", "head.map")]


VIT = Family(
    name="vit", template=TEMPLATE, source="Dosovitskiy et al. 2021 (arXiv:2010.11929), section 3.1 and table 1",
    native=Native(
        model_type="vit", architecture=WITH_CLASSES, architectures=(BARE,), keys=KEYS, weights=weights, prefix="vit.",
        junk=(UnusedTensors(r"(.*\.)?pooler\..*", "the map of the bare model's pooled vector"),
              UnusedTensors(r"embeddings\.mask_token", "for the task of filling in masked patches"))))
