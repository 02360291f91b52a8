"""Parts say in a phrase what they are."""

from __future__ import annotations

from typing import Any

import pytest

from weft.core.model import parse_model
from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY

ATTENTION = {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "position": "rope"}
GLU = {"kind": "glu", "d_ff": 290}


def decoder(*blocks: Any, **more: Any) -> str:
    return parse_model({"kind": "decoder", "vocab_size": 9, "context": 64, "d_model": 112, "blocks": list(blocks),
                        **more}).in_words()


def test_a_decoder_says_its_layers_once() -> None:
    block = {"kind": "pre", "layers": [ATTENTION, GLU]}
    assert decoder({"repeat": 4, "of": [block]}) == "4 layers, width 112, 4 heads / 2 kv, RoPE, SwiGLU 290"
    assert decoder(block, position="learned").startswith("1 layer, width 112, learned positions (")


def test_a_hybrid_counts_what_is_alike() -> None:
    mamba = {"kind": "pre", "layers": ["mamba"]}
    window = {**ATTENTION, "mask": "causal & window(8)"}
    said = decoder({"repeat": 3, "of": [mamba]}, {"kind": "pre", "layers": [window, "mlp"]})
    assert said == ("4 layers, width 112, 3 × Mamba (d_state 16, expand 2, d_conv 4); "
                    "4 heads / 2 kv, causal & window(8), RoPE, MLP 448")


def test_sizes_that_are_left_open_follow_from_the_width() -> None:
    def part(group: str, kind: str, **fields: Any) -> PartConfig:
        return REGISTRY.get((group,), kind).model_validate(fields)

    assert part("feedforward", "glu").in_words(100) == "SwiGLU 272"
    assert part("feedforward", "glu", activation="gelu").in_words(96) == "GEGLU 256"
    assert part("mixer", "lstm").in_words(140) == "LSTM 140"
    assert part("mixer", "lstm", d_hidden=20).in_words(140) == "LSTM 20"
    experts = part("feedforward", "moe", n_experts=4, top_k=1, expert={"kind": "mlp", "d_ff": 8})
    assert experts.in_words(16) == "1 of 4 experts, each MLP 8"


@pytest.mark.parametrize(("plain", "said"), [
    ({"kind": "ngram", "order": 4}, "4-gram, modified Kneser-Ney"),
    ({"kind": "ngram", "order": 2, "smoothing": "add_k", "k": 0.5}, "2-gram, add-0.5"),
    ({"kind": "feedforward", "order": 6, "d_embedding": 39, "d_hidden": 212},
     "window of 5 tokens, embedding 39, hidden layer 212")])
def test_models_without_layers(plain: dict[str, Any], said: str) -> None:
    assert parse_model({"vocab_size": 9, "context": 8, **plain}).in_words() == said


def test_every_part_of_a_model_has_words() -> None:
    groups = ("mixer", "feedforward", "position", "block", "model", "encoder")
    silent = [(part.group, part.kind) for part in REGISTRY.parts() if part.group in groups
              for example in part.examples() if not example.in_words(64).strip()]
    assert set(silent) == {("position", "none")}
