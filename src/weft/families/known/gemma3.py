"""Gemma 3, the models of text: Gemma 2's blocks with norms of queries and keys, five layers with a window to one
without, and other rotary bases in each kind."""

from __future__ import annotations

from functools import partial

from weft.families.family import Family, Native
from weft.families.keys import Fixed, Ignored, Read
from weft.families.known.gemma import UNIT_OFFSET
from weft.families.known.gemma2 import KEYS, WINDOWED, sandwiched, weights
from weft.families.known.llama import LM_HEAD, ROPE, shapes, undivided_width
from weft.families.rope_by_type import RotaryByType
from weft.families.template import Fact
from weft.families.windows import windows_by_type

TURNED = ROPE | {"base": Fact("rope_bases", each=True), "scaling": Fact("rope_scalings", each=True)}

GEMMA3 = Family(
    name="gemma3_text", template=sandwiched(WINDOWED | {"position": TURNED, "qk_norm": UNIT_OFFSET}),
    source="Gemma Team 2025 (arXiv:2503.19786), section 2",
    native=Native(
        model_type="gemma3_text", architecture="Gemma3ForCausalLM", architectures=("Gemma3TextModel",),
        keys=(*shapes(context=131072, d_ff=9216, n_kv_heads=4, vocab_size=262208, d_model=2304, d_head=256,
                      n_layers=26, n_heads=8), *KEYS,
              Read("final_logit_softcapping", "softcap", float, None, null=True),
              Fixed("attn_logit_softcapping", (None,), why="Its class has the key and caps no scores."),
              windows_by_type(4096, 6, "sliding_window_pattern"), RotaryByType(1e6, 1e4, "rope_local_base_freq"),
              Ignored(("_sliding_window_pattern",), "a copy of sliding_window_pattern; layer_types has replaced both")),
        weights=partial(weights, normed=True), prefix="model.", tied=LM_HEAD,
        limits=lambda facts: undivided_width(facts, "Gemma3TextConfig")))
