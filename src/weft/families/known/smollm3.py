"""SmolLM 3: Llama's format, every fourth layer without positions."""

from __future__ import annotations

from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.llama import ATTENTION, BIASED, GLU, LM_HEAD, ROPE, VALUES, decoder, shapes, weights
from weft.families.rope import Rotary
from weft.families.template import N_LAYERS, Fact, Facts, TemplateChoice
from weft.families.windows import FULL, SLIDING, layer_types, mask_of, single_size, window_of

SOME_TURNED = ATTENTION | {"mask": Fact("masks", each=True),
                           "position": TemplateChoice("turned", {True: ROPE, False: {"kind": "none"}}, each=True)}
LAYERS, INTERVAL = "no_rope_layers", "no_rope_layer_interval"


def read_turned(raw: Raw, facts: Facts) -> Facts:
    """One switch a layer: 1 for a layer with rotary positions, despite the key's name."""
    count, step = facts[N_LAYERS], typed(INTERVAL, raw.get(INTERVAL), int) or 4
    given = typed(LAYERS, raw.get(LAYERS), list)
    switches = [int((index + 1) % step != 0) for index in range(count)] if given is None else given
    if len(switches) < count or any(each not in (0, 1) for each in switches):
        raise KeyProblem(f"{LAYERS}: {switches}, which is not 0 or 1 for each of {count} layers.")
    return {"turned": [bool(each) for each in switches[:count]]}


def write_turned(facts: Facts) -> dict[str, Any]:
    """The switches."""
    if not any(facts["turned"]):
        raise KeyProblem(f"{LAYERS}: no layer has rotary positions, so their base is not known.")
    return {LAYERS: [int(each) for each in facts["turned"]]}


def read_windows(raw: Raw, facts: Facts) -> Facts:
    """Windows for the layers of type sliding_attention; left out, those are the layers without positions."""
    used = typed("use_sliding_window", raw.get("use_sliding_window", False), bool)
    window = typed("sliding_window", raw.get("sliding_window"), int) if used else None
    types = raw.get("layer_types") or [FULL if window is None or turned else SLIDING for turned in facts["turned"]]
    return {"masks": [mask_of(window if kind == SLIDING else None)
                      for kind in layer_types(types, facts[N_LAYERS], window)]}


def write_windows(facts: Facts) -> dict[str, Any]:
    """The keys of windows."""
    windows = [window_of(mask) for mask in facts["masks"]]
    size = single_size(windows)
    return {"use_sliding_window": size is not None, "sliding_window": size,
            "layer_types": [FULL if each is None else SLIDING for each in windows]}


ROTARY = Rotary(base=2e6)


def write_rotary(facts: Facts) -> dict[str, Any]:
    """Those of the layers that have rotary positions; `write_turned` refuses models that have none."""
    return ROTARY.write(facts) if any(facts["turned"]) else {}


KEYS: tuple[KeyRule, ...] = (
    *shapes(context=32768, d_ff=11008, n_kv_heads=4, vocab_size=128256, d_model=2048, n_layers=36, n_heads=16),
    *VALUES, Read("tie_word_embeddings", "tied", bool, True),
    Together((LAYERS, INTERVAL), read_turned, write_turned),
    Together(("use_sliding_window", "sliding_window", "layer_types"), read_windows, write_windows),
    Together(ROTARY.keys, ROTARY.read, write_rotary),
    Read("attention_bias", "attention_bias", bool, False, codec=BIASED), Read("mlp_bias", "mlp_bias", bool, False),
    Ignored(("max_window_layers",), "not used: layer_types says which layers have a window"))

SMOLLM3 = Family(
    name="smollm3", template=decoder(SOME_TURNED, GLU),
    source="Bakouch et al. 2025 (SmolLM3); Yang et al. 2025 (arXiv:2501.18795) for layers without positions",
    native=Native(model_type="smollm3", architecture="SmolLM3ForCausalLM", architectures=("SmolLM3Model",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD))
