"""Qwen 3: a norm on each head's queries and keys before the rotation, and no biases."""

from __future__ import annotations

from weft.families.family import Family, Native, Size
from weft.families.keys import Read
from weft.families.known.llama import (
    BIASED,
    GLU,
    HUB,
    LM_HEAD,
    RMS_NORM,
    TIED,
    VALUES,
    attention_weights,
    decoder,
    glu_weights,
    outer_weights,
    shapes,
)
from weft.families.known.qwen2 import WINDOWED
from weft.families.rope import Rotary
from weft.families.template import Facts
from weft.families.weights import Rule
from weft.families.windows import windows_by_layer


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of Llama's tensors and of the norms of queries and keys."""
    return [*outer_weights(), *attention_weights(facts, normed=True), *glu_weights()]


def _size(name: str, parameters: int, d_model: int, d_ff: int, n_layers: int, n_heads: int, *,
          tied: bool = False) -> Size:
    return Size(name, {"hidden_size": d_model, "intermediate_size": d_ff, "num_hidden_layers": n_layers,
                       "num_attention_heads": n_heads, "num_key_value_heads": 8, "rope_theta": 1e6,
                       "tie_word_embeddings": tied, "max_position_embeddings": 40960}, parameters, HUB)


QWEN3 = Family(
    name="qwen3", template=decoder(WINDOWED | {"qk_norm": RMS_NORM}, GLU | {"bias": False}),
    source="Yang et al. 2025 (arXiv:2505.09388)",
    native=Native(
        model_type="qwen3", architecture="Qwen3ForCausalLM", architectures=("Qwen3Model",),
        keys=(*shapes(context=32768, d_ff=22016, n_kv_heads=32, vocab_size=151936, d_head=128), *VALUES, TIED,
              Rotary(), windows_by_layer(), Read("attention_bias", "attention_bias", bool, False, codec=BIASED)),
        weights=weights, prefix="model.", tied=LM_HEAD),
    sizes=(
        _size("qwen3-0.6b", 596_049_920, 1024, 3072, 28, 16, tied=True),
        _size("qwen3-1.7b", 1_720_574_976, 2048, 6144, 28, 16, tied=True),
        _size("qwen3-4b", 4_022_468_096, 2560, 9728, 36, 32, tied=True),
        _size("qwen3-8b", 8_190_735_360, 4096, 12288, 36, 32),
        _size("qwen3-14b", 14_768_307_200, 5120, 17408, 40, 40),
        _size("qwen3-32b", 32_762_123_264, 5120, 25600, 64, 64),
    ))
