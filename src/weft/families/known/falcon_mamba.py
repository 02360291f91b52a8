"""Falcon-Mamba: Mamba with root-mean-square norms, without weights, of every token's step features, B and C."""

from __future__ import annotations

from weft.families.family import Family, Native
from weft.families.keys import Read
from weft.families.known.mamba import HEAD, KEYS, MIXER, no_context, template, weights
from weft.families.template import Fact

NORMED = MIXER | {"norm": {"kind": "rmsnorm", "eps": Fact("mixer_eps"), "weight": False}}
SIZE = {"vocab_size": 65024, "hidden_size": 4096, "num_hidden_layers": 64, "tie_word_embeddings": False}

FALCON_MAMBA = Family(
    name="falcon_mamba", template=template(NORMED), source="Zuo et al. 2024 (arXiv:2410.05355), section 2",
    native=Native(
        model_type="falcon_mamba", architecture="FalconMambaForCausalLM", architectures=("FalconMambaModel",),
        keys=(*KEYS, Read("mixer_rms_eps", "mixer_eps", float, 1e-6), no_context(8192)), weights=weights,
        prefix="backbone.", tied=HEAD))
