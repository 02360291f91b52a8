"""Qwen 1.5, 2 and 2.5: Llama's format with biases on queries, keys and values, and windows on some layers."""

from __future__ import annotations

from weft.families.family import Family, Native, Size
from weft.families.keys import KeyRule
from weft.families.known.llama import ATTENTION, GLU, HUB, LM_HEAD, TIED, VALUES, decoder, shapes, weights
from weft.families.rope import Rotary
from weft.families.template import Hole
from weft.families.windows import windows_by_layer

WINDOWED = ATTENTION | {"mask": Hole("masks", each=True)}
KEYS: tuple[KeyRule, ...] = (*shapes(context=32768, d_ff=22016, n_kv_heads=None, vocab_size=151936), *VALUES, TIED,
                             Rotary(), windows_by_layer())


def _size(name: str, parameters: int, d_model: int, d_ff: int, n_layers: int, heads: tuple[int, int], *,
          tied: bool = False, vocab_size: int = 151936) -> Size:
    """Return a size. ``heads`` are the numbers of query heads and of key/value heads."""
    return Size(name, {"hidden_size": d_model, "intermediate_size": d_ff, "num_hidden_layers": n_layers,
                       "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "rope_theta": 1e6,
                       "tie_word_embeddings": tied, "vocab_size": vocab_size}, parameters, HUB)


QWEN2 = Family(
    name="qwen2", template=decoder(WINDOWED | {"bias": "qkv"}, GLU | {"bias": False}),
    source="Yang et al. 2024 (arXiv:2407.10671); Qwen Team 2024 (arXiv:2412.15115)",
    native=Native(model_type="qwen2", architecture="Qwen2ForCausalLM", architectures=("Qwen2Model",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD),
    sizes=(
        _size("qwen2-0.5b", 494_032_768, 896, 4864, 24, (14, 2), tied=True),
        _size("qwen2-1.5b", 1_543_714_304, 1536, 8960, 28, (12, 2), tied=True),
        _size("qwen2.5-3b", 3_085_938_688, 2048, 11008, 36, (16, 2), tied=True),
        _size("qwen2-7b", 7_615_616_512, 3584, 18944, 28, (28, 4), vocab_size=152064),
        _size("qwen2.5-14b", 14_770_033_664, 5120, 13824, 48, (40, 8), vocab_size=152064),
        _size("qwen2.5-32b", 32_763_876_352, 5120, 27648, 64, (40, 8), vocab_size=152064),
        _size("qwen2-72b", 72_706_203_648, 8192, 29568, 80, (64, 8), vocab_size=152064),
    ))
