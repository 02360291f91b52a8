"""OLMo 3: OLMo 2 with three layers with a window to one without, of which only the latter are scaled."""

from __future__ import annotations

from weft.families.family import Family, Native
from weft.families.known.gemma3 import TURNED
from weft.families.known.llama import LM_HEAD
from weft.families.known.olmo2 import KEYS, NORMED, normed_after, weights
from weft.families.rope_by_type import RotaryByType
from weft.families.template import Fact
from weft.families.windows import windows_by_type

WINDOWED = NORMED | {"mask": Fact("masks", each=True), "position": TURNED}
PUBLISHED = {"vocab_size": 100278, "max_position_embeddings": 65536, "rope_theta": 5e5, "rms_norm_eps": 1e-6}

OLMO3 = Family(
    name="olmo3", template=normed_after(WINDOWED), source="Team OLMo 2025 (arXiv:2512.13961), section 3",
    native=Native(model_type="olmo3", architecture="Olmo3ForCausalLM", architectures=("Olmo3Model",),
                  keys=(*KEYS, windows_by_type(4096, 4), RotaryByType(5e5, 5e5)), weights=weights, prefix="model.",
                  tied=LM_HEAD, widens=True))
