"""Keys of a foreign configuration that its family has no rule for: which of them refuse it, and which are notes.

A class of `transformers` does not read such a key either, so that it changes nothing, with two exceptions:

- a misspelling of a key that does, whose value then goes missing;
- a key that changes what is computed in another family, which a later version of the class may read.

Both refuse the configuration by name. Any other key gives a note, and none where its value leaves off a part that is
off without the key too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from weft.families.keys import NOTHING, Fixed, Ignored, Kept, KeyRule, Raw, Read

NEAR = 0.85
"""Similarity (`difflib.SequenceMatcher.ratio`) from which a name is a misspelling: one letter more, less or other in
seven, and not ``hidden_dropout_prob`` for ``hidden_dropout``."""

MATHEMATICS = frozenset({
    "alibi", "attention_multiplier", "attn_logit_softcapping", "attn_temperature_tuning", "clip_qkv", "d_conv",
    "dim_model_base", "emb_scale", "embedding_multiplier", "ffn_sublayer_norm", "final_logit_softcapping", "use_alibi",
    "layer_scale", "layerscale_value", "lm_head_bias", "lm_head_multiplier", "logit_scale", "logit_softcapping",
    "logits_scaling", "mrope_section", "mup_width_scale", "mup_embeddings_multiplier", "n_experts", "norm_after",
    "num_experts", "num_local_experts", "parallel_attn", "parallel_residual", "qk_norm", "residual_multiplier",
    "residual_scale", "rope_interleave", "rope_interleaved", "rope_ratio", "rope_local_base_freq", "scale_depth",
    "scale_emb", "sinusoidal", "softcap", "swiglu_limit", "use_mrope", "use_qk_norm", "use_rmsnorm", "use_sinks",
    "value_residual"})
"""Keys that change what published models compute, besides those that a family here reads."""

ON = frozenset({"attn_temperature_tuning", "do_layer_norm_before", "has_relative_attention_bias", "is_causal",
                "is_gated_act", "norm_topk_prob", "position_biased_input", "rope_interleave", "scale_attn_weights",
                "tie_word_embeddings", "use_abs_pos", "use_bias", "use_qk_norm", "use_rmsnorm"})
"""Keys whose absence means true in classes of `transformers` 5.24, so that false changes what is computed there. Those
of the families here are added by their defaults (`on_by_default`)."""

MOST_UNKNOWN = 200
"""Each is compared with the known ones. Published configurations have a dozen that no family reads."""


class Unknown:
    """The keys of a configuration that ``rules`` do not name.

    Args:
        rules: of all the keys of the family.
        others: the keys that change what is computed in any family.
        on: those of them that are true where they are missing, in every family that reads them.
    """

    def __init__(self, rules: Iterable[KeyRule], raw: Raw, others: Iterable[str], on: Iterable[str] = ()) -> None:
        rules = tuple(rules)
        named = {key for rule in rules for key in rule.keys}
        own, on = computing(rules), {*on, *ON}
        elsewhere = {*others, *MATHEMATICS}
        self.problems: list[str] = []
        self.notes: list[str] = []
        unknown = [key for key, value in raw.items() if key not in named and value is not None]
        if len(unknown) > MOST_UNKNOWN:
            self.problems.append(f"{len(unknown):,} unknown keys, such as {unknown[0][:80]!r}; at most {MOST_UNKNOWN} "
                                 "are looked at. This is no configuration of this family.")
            return
        for key in unknown:
            value = raw[key]
            near = [] if key in elsewhere else difflib.get_close_matches(key, sorted(own), n=1, cutoff=NEAR)
            if near:
                self.problems.append(f"{key}: unknown key. Did you mean {near[0]!r}?")
            elif key in (on if value in (*NOTHING, "") else elsewhere):
                self.problems.append(f"{key}: unknown key. {_shown(value)} changes what is computed in other models, "
                                     "and this family has no such part here.")
            elif key not in elsewhere:
                self.notes.append(f"{key}: unknown key. Its value, {_shown(value)}, is not used.")


def computing(rules: Iterable[KeyRule]) -> frozenset[str]:
    """The keys of ``rules`` on which the result depends."""
    return frozenset(key for rule in rules if not isinstance(rule, (Ignored, Kept)) for key in rule.keys)


def on_by_default(rules: Iterable[KeyRule]) -> frozenset[str]:
    """The keys of ``rules`` that are true where they are missing, in each of the rules that reads them."""
    defaults: dict[str, set[bool]] = {}
    for rule in rules:
        if isinstance(rule, (Read, Fixed)):
            for key in rule.keys:
                defaults.setdefault(key, set()).add(rule.default is True)
    return frozenset(key for key, found in defaults.items() if found == {True})


def _shown(value: object) -> str:
    """The value, or the start of a long one."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
