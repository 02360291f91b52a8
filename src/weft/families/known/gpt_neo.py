"""GPT-Neo: GPT-2's architecture with unscaled scores, windows on some layers, and queries, keys and values without
biases."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from weft.families.common import ACTIVATIONS, divided_heads
from weft.families.family import Family, Native
from weft.families.keys import KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.gpt2 import LAYER_NORM, MLP
from weft.families.known.gpt2 import TEMPLATE as GPT2
from weft.families.template import N_LAYERS, Fact, Facts, Layers
from weft.families.tensor_steps import fuse
from weft.families.weights import Rule, both, rename
from weft.families.windows import mask_of, window_of

ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "bias": "output",
             "mask": Fact("masks", each=True), "scores": {"scale": 1.0, "dropout": Fact("attention_dropout")}}
TEMPLATE = GPT2 | {"blocks": Layers({"kind": "pre", "norm": LAYER_NORM, "dropout": Fact("dropout"),
                                     "layers": [ATTENTION, MLP]})}

GLOBAL, LOCAL = "global", "local"
LAYERS, TYPES, WINDOW = "attention_layers", "attention_types", "window_size"
DEFAULT_WINDOW = 256


def read_masks(raw: Raw, facts: Facts) -> Facts:
    """One mask a layer, from a list of layers, else from runs of them: [[["global", "local"], 12]]."""
    window = typed(WINDOW, raw.get(WINDOW, DEFAULT_WINDOW), int)
    kinds = typed(LAYERS, raw.get(LAYERS), list)
    key = TYPES if kinds is None else LAYERS
    kinds = _expanded(raw.get(TYPES)) if kinds is None else kinds
    wrong = sorted({str(kind) for kind in kinds} - {GLOBAL, LOCAL})
    if wrong:
        raise KeyProblem(f"{key}: {', '.join(wrong)}, but only {GLOBAL} and {LOCAL} can be read.")
    if len(kinds) != facts[N_LAYERS]:
        raise KeyProblem(f"{key}: {len(kinds)} types for {facts[N_LAYERS]} layers.")
    if LOCAL in kinds and (window is None or window < 1):
        raise KeyProblem(f"{WINDOW}: {window}, but some layers are {LOCAL}, whose windows have 1 token or more.")
    return {"masks": [mask_of(window if kind == LOCAL else None) for kind in kinds]}


def _expanded(runs: Any) -> list[Any]:
    kinds: list[Any] = []
    for run in typed(TYPES, [[[GLOBAL, LOCAL], 12]] if runs is None else runs, list):
        if not (isinstance(run, list) and len(run) == 2 and isinstance(run[0], list) and isinstance(run[1], int)):
            raise KeyProblem(f"{TYPES}: {run!r} is not a list of types and how often it repeats.")
        kinds += run[0] * run[1]
    return kinds


def write_masks(facts: Facts) -> dict[str, Any]:
    """The list of layers, and the same in runs."""
    windows = [window_of(mask) for mask in facts["masks"]]
    sizes = sorted({window for window in windows if window is not None})
    if len(sizes) > 1:
        raise KeyProblem(f"{WINDOW}: layers have windows of {', '.join(map(str, sizes))} tokens; the file has one "
                         "size.")
    kinds = [GLOBAL if window is None else LOCAL for window in windows]
    runs = [[[kind], len(list(run))] for kind, run in groupby(kinds)]
    return {WINDOW: sizes[0] if sizes else DEFAULT_WINDOW, LAYERS: kinds, TYPES: runs}


KEYS: tuple[KeyRule, ...] = (
    Read("vocab_size", "vocab_size", default=50257), Read("max_position_embeddings", "context", default=2048),
    Read("hidden_size", "d_model", default=2048),
    Read("num_layers", N_LAYERS, default=24, alias=("num_hidden_layers",)),
    Read("num_heads", "n_heads", default=16, alias=("num_attention_heads",)), divided_heads("num_heads", "hidden_size"),
    Read("intermediate_size", "d_ff", derive=lambda facts: 4 * facts["d_model"]),
    Together((LAYERS, TYPES, WINDOW), read_masks, write_masks),
    Read("activation_function", "activation", str, "gelu_new", codec=ACTIVATIONS),
    Read("resid_dropout", "dropout", float, 0.0), Read("embed_dropout", "embedding_dropout", float, 0.0),
    Read("attention_dropout", "attention_dropout", float, 0.0), Read("layer_norm_epsilon", "eps", float, 1e-5),
    Read("initializer_range", "std", float, 0.02), Read("tie_word_embeddings", "tied", bool, True))


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors; the file stores queries, keys and values as separate tensors, not transposed."""
    theirs, ours, width = "transformer.h.{layer}", "stack.layers.{layer}", facts["d_model"]
    attention = f"{theirs}.attn.attention"
    pairs = {"attn.attention.out_proj": "layers.0.output", "mlp.c_fc": "layers.1.up", "mlp.c_proj": "layers.1.down",
             "ln_1": "norms.0", "ln_2": "norms.1"}
    return [rename("transformer.wte.weight", "embedding.tokens.weight"),
            rename("transformer.wpe.weight", "embedding.position.table"),
            Rule(tuple(f"{attention}.{name}_proj.weight" for name in "qkv"), (f"{ours}.layers.0.qkv.weight",),
                 (fuse((width, width, width)),)),
            *(rule for a, b in pairs.items() for rule in both(f"{theirs}.{a}", f"{ours}.{b}")),
            *both("transformer.ln_f", "norm"), rename("lm_head.weight", "readout.weight")]


GPT_NEO = Family(
    name="gpt_neo", template=TEMPLATE, source="Black et al. 2021 (GPT-Neo, doi:10.5281/zenodo.5297715)",
    native=Native(
        model_type="gpt_neo", architecture="GPTNeoForCausalLM", architectures=("GPTNeoModel",), keys=KEYS,
        weights=weights, prefix="transformer.", tied=("lm_head.weight", "transformer.wte.weight")))
