"""DeBERTa: disentangled attention with a vector for each distance, which all layers share, and keys without biases."""

from __future__ import annotations

from typing import Any

from weft.families.encoders import HeadKey, body, inside
from weft.families.family import Family, Native
from weft.families.keys import KEPT, Fixed, Ignored, KeyRule, Raw, Together, typed
from weft.families.known.deberta_v2 import COPIES, JUNK, LENGTH, LONGEST, SHARED_KEYS, outer_weights, template
from weft.families.template import Facts
from weft.families.tensor_steps import fuse, ungroup
from weft.families.weights import Rule, both, rename


def read_distances(raw: Raw, facts: Facts) -> Facts:
    """A row for each distance up to the longest, on both sides."""
    length, longest = typed(LENGTH, raw.get(LENGTH, 512), int), typed(LONGEST, raw.get(LONGEST, -1), int)
    return {"context": length, "window": length, "rows": 2 * (length if longest < 1 else longest), "normed": False}


def write_distances(facts: Facts) -> dict[str, Any]:
    """The longest position and distance."""
    return {LENGTH: facts["context"] if facts["absolute"] else facts["window"], LONGEST: facts["rows"] // 2}


def limits(facts: Facts) -> list[str]:
    """The vectors of distances have no norm."""
    return ["shared.relative.norm: of the vectors of distances, which only DeBERTa v2 has."] if facts["normed"] else []


HEAD = HeadKey("Deberta")
KEYS: tuple[KeyRule, ...] = (
    *body(vocab_size=50265, eps=1e-7), *SHARED_KEYS, HEAD, Together((LENGTH, LONGEST), read_distances, write_distances),
    Fixed("talking_head", (False, None), default=False, why="It would mix the scores of heads."),
    Ignored(("padding_idx",), "a copy of pad_token_id"))


def weights(facts: Facts, *, published: bool = False) -> list[Rule]:
    """All tensors; heads whose tensors the model lacks are left out. Queries, keys and values are fused head by
    head."""
    legacy = facts.get(KEPT, {}).get("legacy", True) is not published
    layer, ours = f"{inside(facts, 'deberta.')}encoder.layer.{{layer}}.attention.self", "stack.layers.{layer}.layers.0"
    heads, size = facts["n_heads"], facts["d_head"]
    return [*outer_weights(facts, legacy=legacy),
            rename(f"{layer}.in_proj.weight", f"{ours}.qkv.weight", ungroup(heads, (size,) * 3)),
            Rule((f"{layer}.q_bias", f"{layer}.v_bias"), (f"{ours}.qv_bias",), (fuse((heads * size,) * 2),)),
            *both(f"{layer}.pos_proj", f"{ours}.position.k"), *both(f"{layer}.pos_q_proj", f"{ours}.position.q")]


DEBERTA = Family(
    name="deberta", template=template({"bias": "all_but_keys"}, projections="own"),
    source="He et al. 2021 (arXiv:2006.03654), section 3 and its released code",
    native=Native(
        model_type="deberta", architecture="DebertaForMaskedLM", architectures=HEAD.classes(), keys=KEYS,
        weights=weights, otherwise=(lambda facts: weights(facts, published=True),), prefix="deberta.", junk=JUNK,
        copies=COPIES, limits=limits))
