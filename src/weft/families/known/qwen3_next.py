"""Qwen3-Next: three layers of Gated DeltaNet to one of gated attention, and experts beside one for all tokens."""

from __future__ import annotations

from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Fixed, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.llama import (
    ATTENTION,
    LM_HEAD,
    RMS_NORM,
    ROPE,
    TIED,
    VALUES,
    decoder,
    glu_weights,
    outer_weights,
    shapes,
)
from weft.families.known.qwen import EXPERTS, OURS, SHARED, expert_weights, experts, where_sparse
from weft.families.known.qwen import sizes as widths
from weft.families.rope import Rotary
from weft.families.template import N_LAYERS, Fact, Facts, TemplateChoice
from weft.families.tensor_steps import gates_apart, split, ungroup
from weft.families.weights import Rule, UnusedTensors, rename
from weft.families.windows import FULL

LINEAR = "linear_attention"
TYPES, INTERVAL = "layer_types", "full_attention_interval"
CENTRED = RMS_NORM | {"unit_offset": True}
SILU = {"activation": "silu", "bias": False}
DELTA = {"kind": "gated_delta_net", "n_heads": Fact("delta_heads"), "n_value_heads": Fact("delta_value_heads"),
         "d_head": Fact("delta_head"), "d_value": Fact("delta_value"), "d_conv": Fact("kernel"), "norm": RMS_NORM,
         "gate": True}
GATED = ATTENTION | {"kind": "gated_attention", "bias": "none", "qk_norm": CENTRED,
                     "position": ROPE | {"layout": "half_split"}}


def template() -> dict[str, object]:
    """A pre-norm decoder whose norms start at 0, with one of two mixers and of two feed-forwards in each layer."""
    glu = {"kind": "glu", "d_ff": Fact("d_ff"), **SILU}
    sparse = EXPERTS | {"expert": {"kind": "glu", "d_ff": Fact("d_expert"), **SILU},
                        "shared_expert": {"kind": "glu", "d_ff": Fact("d_shared"), **SILU},
                        "shared_gate": SHARED["shared_gate"]}
    mixer = TemplateChoice("linear", {True: DELTA, False: GATED}, each=True)
    model = decoder(mixer, TemplateChoice("sparse", {True: sparse, False: glu}, each=True)) | {"norm": CENTRED}
    layers: Any = model["blocks"]
    return model | {"blocks": type(layers)(layers.block | {"norm": CENTRED})}


def read_types(raw: Raw, facts: Facts) -> Facts:
    """Which layers are Gated DeltaNet: all but every fourth, unless the file says otherwise."""
    count, step = facts[N_LAYERS], typed(INTERVAL, raw.get(INTERVAL), int)
    step = 4 if step is None else step
    if step < 1:
        raise KeyProblem(f"{INTERVAL}: {step}, but it counts layers from one with attention to the next.")
    types = typed(TYPES, raw.get(TYPES), list) or [LINEAR if (index + 1) % step else FULL for index in range(count)]
    wrong = sorted({str(kind) for kind in types} - {LINEAR, FULL})
    if wrong:
        raise KeyProblem(f"{TYPES}: {', '.join(wrong)}, but only {LINEAR} and {FULL} can be read.")
    if len(types) != count:
        raise KeyProblem(f"{TYPES}: {len(types)} types for {count} layers.")
    return {"linear": [kind == LINEAR for kind in types]}


def write_types(facts: Facts) -> dict[str, Any]:
    """The types of all layers."""
    if len(set(facts["linear"])) < 2:
        missing = FULL if all(facts["linear"]) else LINEAR
        raise KeyProblem(f"{TYPES}: no layer is of the type {missing}, so its sizes are not known.")
    return {TYPES: [LINEAR if linear else FULL for linear in facts["linear"]]}


def where_mixed(rule: KeyRule) -> KeyRule:
    """A rule about one of the two mixers, which writes nothing where a model has only one; `write_types` refuses
    that."""
    return Together(rule.keys, rule.read, lambda facts: rule.write(facts) if len(set(facts["linear"])) > 1 else {})


def delta_keys() -> tuple[KeyRule, ...]:
    """The sizes of Gated DeltaNet."""
    known = {"linear_num_key_heads": ("delta_heads", 16), "linear_num_value_heads": ("delta_value_heads", 32),
             "linear_key_head_dim": ("delta_head", 128), "linear_value_head_dim": ("delta_value", 128),
             "linear_conv_kernel_dim": ("kernel", 4)}
    return tuple(where_mixed(Read(key, fact, default=default)) for key, (fact, default) in known.items())


def attention_weights(facts: Facts, theirs: str, ours: str) -> list[Rule]:
    """Gated attention's, of one layer."""
    q, kv, size = facts["n_heads"], facts["n_kv_heads"], facts["d_head"]
    return [Rule(tuple(f"{theirs}.self_attn.{name}_proj.weight" for name in "qkv"),
                 (f"{ours}.qkv.weight", f"{ours}.gate.weight"), (gates_apart(q, size, kv * size),)),
            *(rename(f"{theirs}.self_attn.{name}_norm.weight", f"{ours}.{name}_norm.weight") for name in "qk"),
            rename(f"{theirs}.self_attn.o_proj.weight", f"{ours}.output.weight")]


def delta_weights(facts: Facts, theirs: str, ours: str) -> list[Rule]:
    """Gated DeltaNet's, of one layer: in the file each head of queries and keys is followed by its values and gates,
    and each group of rates by its decays."""
    heads, values = facts["delta_heads"], facts["delta_value_heads"]
    key, value, group = facts["delta_head"], values * facts["delta_value"], values // heads
    names = {"conv1d.weight": "convolution.weight", "A_log": "log_rate", "dt_bias": "decay_bias",
             "norm.weight": "norm.weight", "out_proj.weight": "output.weight"}
    return [Rule((f"{theirs}.linear_attn.in_proj_qkvz.weight",), (f"{ours}.qkv.weight", f"{ours}.gate.weight"),
                 (ungroup(heads, (key, key, value // heads, value // heads)),
                  split((2 * heads * key + value, value)))),
            Rule((f"{theirs}.linear_attn.in_proj_ba.weight",), (f"{ours}.rate.weight", f"{ours}.decay.weight"),
                 (ungroup(heads, (group, group)), split((values, values)))),
            *(rename(f"{theirs}.linear_attn.{name}", f"{ours}.{own}") for name, own in names.items())]


def mixer_weights(facts: Facts) -> list[Rule]:
    """Those of every layer's mixer."""
    return [rule for index, linear in enumerate(facts["linear"])
            for rule in (delta_weights if linear else attention_weights)(
                facts, f"model.layers.{index}", f"stack.layers.{index}.layers.0")]


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of all tensors."""
    theirs = "model.layers.{layer}.mlp"
    return [*outer_weights(), *mixer_weights(facts), *glu_weights(), *expert_weights(facts),
            rename(f"{theirs}.shared_expert_gate.weight", f"{OURS}.shared_gate.weight"),
            *(rename(f"{theirs}.shared_expert.{name}_proj.weight", f"{OURS}.shared.{name}.weight")
              for name in ("gate", "up", "down"))]


ATTENTIVE = frozenset({"num_attention_heads", "num_key_value_heads", "head_dim", "attention_dropout",
                       "rope_parameters"})
"""Keys about attention."""
KEYS: tuple[KeyRule, ...] = (
    *widths(shapes(context=32768, d_ff=5632, n_kv_heads=2, vocab_size=151936, d_model=2048, d_head=256, n_layers=48,
                   n_heads=16), 5632),
    Together((TYPES, INTERVAL), read_types, write_types),
    *(rule for rule in VALUES if "hidden_act" not in rule.keys), TIED, Rotary(share=0.25))

QWEN3_NEXT = Family(
    name="qwen3_next", template=template(),
    source="Qwen Team 2025 (Qwen3-Next); Yang et al. 2025 (arXiv:2412.06464); Qiu et al. 2025 (arXiv:2505.06708)",
    native=Native(
        model_type="qwen3_next", architecture="Qwen3NextForCausalLM", architectures=("Qwen3NextModel",),
        keys=(*(where_mixed(rule) if ATTENTIVE.intersection(rule.keys) else rule for rule in KEYS),
              Fixed("hidden_act", ("silu",), default="silu", why="Short convolutions are followed by SiLU."),
              Fixed("attention_bias", (False,), default=False, why="Gates have no bias."),
              Fixed("use_sliding_window", (False, None), default=False, why="Its attention has no window."),
              *delta_keys(),
              *experts(512, 512, 10, renormalise=True),
              where_sparse(Read("shared_expert_intermediate_size", "d_shared", default=512))),
        weights=weights, prefix="model.", tied=LM_HEAD,
        junk=(UnusedTensors(r"mtp\..*", "multi-token prediction, which the language model does without"),)))
