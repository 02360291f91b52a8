"""Tiny Vision Transformers: squares and oblongs, with and without biases of queries, keys and values, with classes."""

from __future__ import annotations

from against_transformers.tiny import Case

SHAPES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
ANIMALS = {"id2label": {0: "cat", 1: "dog", 2: "owl"}, "label2id": {"cat": 0, "dog": 1, "owl": 2}}
OBLONG = {"image_size": (8, 12), "patch_size": (2, 4), "num_channels": 1, "qkv_bias": False, "hidden_act": "gelu_new",
          "layer_norm_eps": 1e-6, "num_labels": 5}

IMAGES = [
    Case("vit-square", "ViTConfig", "ViTForImageClassification", {**SHAPES, "image_size": 8, "patch_size": 4,
                                                                  **ANIMALS}),
    Case("vit-oblong", "ViTConfig", "ViTForImageClassification", {**SHAPES, **OBLONG}),
    Case("vit-bare", "ViTConfig", "ViTModel", {**SHAPES, "image_size": 6, "patch_size": 3}),
]
