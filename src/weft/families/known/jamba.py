"""Jamba: Mamba, with attention in some layers, and experts in some; no positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.families.family import Family, Native
from weft.families.keys import Ignored, KeyProblem, KeyRule, Raw, Read, Together, typed
from weft.families.known.llama import GLU, LM_HEAD, RMS_NORM, TIED, VALUES, attention_weights, decoder, shapes
from weft.families.known.mamba import MIXER, mixer_weights, rank_key
from weft.families.known.mixtral import COEFFICIENT, ROUTER_LOGITS
from weft.families.known.qwen import read_balance, some_sparse, write_balance
from weft.families.template import N_LAYERS, Fact, Facts, TemplateChoice
from weft.families.weights import Rule, both, rename

ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "n_kv_heads": Fact("n_kv_heads"),
             "d_head": Fact("d_head"), "bias": "none", "scores": {"dropout": Fact("attention_dropout")}}
EXPERTS = {"kind": "moe", "expert": GLU | {"bias": False}, "n_experts": Fact("n_experts"), "top_k": Fact("top_k"),
           "renormalise": False, "balance_loss": Fact("balance_loss"), "z_loss": 0.0}
ATTENDS, SPARSE = "attends", "sparse"
"""Facts: which layers have attention, and Mamba where not; which have experts."""


def every(what: str, fact: str, period: int, offset: int) -> KeyRule:
    """Which layers are of a kind: those whose index leaves ``offset`` when divided by ``period``."""
    names = (f"{what}_layer_period", f"{what}_layer_offset")

    def read(raw: Raw, facts: Facts) -> Facts:
        step, first = (typed(name, raw.get(name, usual), int)
                       for name, usual in zip(names, (period, offset), strict=True))
        if step is None or first is None or not 0 <= first < step:
            raise KeyProblem(f"{names[1]}: {first} is not below {names[0]}, {step}.")
        return {fact: [index % step == first for index in range(facts[N_LAYERS])]}

    def write(facts: Facts) -> dict[str, Any]:
        found = periodic(facts[fact])
        if found is None:
            raise KeyProblem(f"{names[0]}: the layers {[i for i, has in enumerate(facts[fact]) if has]} of "
                             f"{len(facts[fact])} do not lie at equal distances.")
        return dict(zip(names, found, strict=True))

    return Together(names, read, write)


def periodic(flags: Sequence[bool]) -> tuple[int, int] | None:
    """The shortest period and the offset of a pattern; None if it has none."""
    return next(((step, first) for step in range(1, len(flags) + 2) for first in range(step)
                 if [index % step == first for index in range(len(flags))] == list(flags)), None)


def some(fact: str, rule: KeyRule, has: bool = True) -> KeyRule:
    """A rule about layers of a kind, or of the other kind, which writes nothing where there are none."""
    return Together(rule.keys, rule.read, lambda facts: rule.write(facts) if has in facts[fact] else {})


def single_expert(raw: Raw, facts: Facts) -> Facts:
    """The number of experts; with one, no layer has any."""
    count = typed("num_experts", raw.get("num_experts", raw.get("num_local_experts", 16)), int)
    return {"n_experts": count} if count != 1 else {"n_experts": 1, SPARSE: [False] * facts[N_LAYERS]}


SHAPES = shapes(context=262144, d_ff=14336, n_kv_heads=8, vocab_size=65536)
HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim", "attention_dropout")
KEYS: tuple[KeyRule, ...] = (
    Read("num_hidden_layers", N_LAYERS, default=32), every("attn", ATTENDS, 8, 4),
    every("expert", SPARSE, 2, 1),
    *(some(ATTENDS, rule) if set(HEADS).intersection(rule.keys) else rule for rule in (*SHAPES, *VALUES)
      if "num_hidden_layers" not in rule.keys), TIED,
    some(SPARSE, Together(("num_experts", "num_local_experts"), single_expert,
                          lambda facts: {"num_experts": facts["n_experts"]})),
    *(some(SPARSE, rule) for rule in (Read("num_experts_per_tok", "top_k", default=2),
                                      Together((COEFFICIENT,), read_balance, write_balance))),
    *(some(ATTENDS, rule, has=False) for rule in (
        Read("mamba_d_state", "d_state", default=16), Read("mamba_d_conv", "d_conv", default=4),
        Read("mamba_expand", "expand", default=2), rank_key("mamba_dt_rank"),
        Read("mamba_conv_bias", "conv_bias", bool, True), Read("mamba_proj_bias", "bias", bool, False))),
    Together((), lambda raw, facts: {"dt_min": 0.001, "dt_max": 0.1, "dt_floor": 1e-4}, lambda facts: {}),
    Ignored(("use_mamba_kernels", "use_mambapy", "use_associative_scan"), "how the scan is computed"),
    Ignored(("mamba_inner_layernorms",), "of the code that trained it; they are always there"),
    Ignored(("num_logits_to_keep", "calc_logits_for_entire_prompt"), "which logits transformers returns"),
    ROUTER_LOGITS,
    Ignored(("sliding_window",), "not read by the class of transformers"))


def weights(facts: Facts) -> list[Rule]:
    """Each layer's mixer, then what all layers have."""
    layer, block = "model.layers.{layer}", "stack.layers.{layer}"
    normed = [rename(f"{layer}.mamba.{name}_layernorm.weight", f"{block}.layers.0.norms.{index}.weight")
              for index, name in enumerate(("dt", "b", "c"))]
    recurs = [*mixer_weights(f"{layer}.mamba", f"{block}.layers.0"), *normed]
    attends = attention_weights(facts | {"layout": "half_split"}) if any(facts[ATTENDS]) else []  # nothing is rotated
    mixers = [rule.at({"layer": str(index)}) for index, has in enumerate(facts[ATTENDS])
              for rule in (attends if has else recurs)]
    theirs, ours, names = f"{layer}.feed_forward", f"{block}.layers.1", ("gate", "up", "down")
    return [*mixers, rename("model.embed_tokens.weight", "embedding.tokens.weight"),
            rename(f"{layer}.input_layernorm.weight", f"{block}.norms.0.weight"),
            rename(f"{layer}.pre_ff_layernorm.weight", f"{block}.norms.1.weight"),
            *(rule for name in names for rule in both(f"{theirs}.{name}_proj", f"{ours}.{name}")),
            rename(f"{theirs}.router.weight", f"{ours}.router.weight"),
            *(rename(f"{theirs}.experts.{n}.{name}_proj.weight", f"{ours}.experts.{n}.{name}.weight")
              for n in range(facts.get("n_experts", 0)) for name in names),
            rename("model.final_layernorm.weight", "norm.weight"), rename("lm_head.weight", "readout.weight")]


MIXERS = TemplateChoice(ATTENDS, {True: ATTENTION, False: MIXER | {"norm": RMS_NORM}}, each=True)
JAMBA = Family(
    name="jamba", template=decoder(MIXERS, some_sparse(EXPERTS)),
    source="Lieber et al. 2024 (arXiv:2403.19887), section 3",
    native=Native(model_type="jamba", architecture="JambaForCausalLM", architectures=("JambaModel",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD))
