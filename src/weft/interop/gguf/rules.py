"""Rules between the tensors of a GGUF file and a model's. Names are those of the gguf package's ``TENSOR_NAMES``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.families.rope import reordered
from weft.families.template import Facts
from weft.families.tensor_steps import UNSTACK, Step, fuse, one_by_one, split
from weft.families.weights import Rule, both, rename
from weft.interop.gguf.naming import kv_heads
from weft.ops.rotary import Layout

BLOCK, OURS = "blk.{layer}", "stack.layers.{layer}"
PRE_NORMS: Mapping[str, str] = {"attn_norm": "norms.0", "ffn_norm": "norms.1"}
ONE_NORM: Mapping[str, str] = {"attn_norm": "norms.0"}

Weights = Callable[[Facts], list[Rule]]


OFFSET = one_by_one(lambda tensor: tensor.float() - 1.0, lambda tensor: tensor.float() + 1.0)
"""The file has the model's numbers plus one (norms of 1 + w), in float32."""


def outer(*steps: Step) -> list[Rule]:
    """Rules for embedding, last norm and readout; ``steps`` apply to the norm."""
    return [rename("token_embd.weight", "embedding.tokens.weight"), *both("output_norm", "norm", *steps),
            *both("output", "readout")]


def norms(names: Mapping[str, str], *steps: Step) -> list[Rule]:
    """Rules for the norms of a block: Weft's names by the file's."""
    return [rule for theirs, ours in names.items() for rule in both(f"{BLOCK}.{theirs}", f"{OURS}.{ours}", *steps)]


def fused_attention(facts: Facts, layout: Layout | None) -> list[Rule]:
    """Queries, keys and values in one matrix, as in the model; ``layout``: of rotary pairs in the file."""
    turned = reordered(facts, facts["n_heads"] + kv_heads(facts), layout) if layout else ()
    return [*both(f"{BLOCK}.attn_qkv", f"{OURS}.layers.0.qkv", *turned), *_attention_output()]


def separate_attention(facts: Facts, layout: Layout) -> list[Rule]:
    """Queries, keys and values as separate matrices."""
    q, kv, size = facts["n_heads"], kv_heads(facts), facts["d_head"]
    steps = (fuse((q * size, kv * size, kv * size)), *reordered(facts, q + kv, layout))
    return [*(Rule(tuple(f"{BLOCK}.attn_{name}.{part}" for name in "qkv"), (f"{OURS}.layers.0.qkv.{part}",), steps)
              for part in ("weight", "bias")), *_attention_output()]


def head_norms(facts: Facts, layout: Layout) -> list[Rule]:
    """Norms of each head's queries and keys."""
    return [rename(f"{BLOCK}.attn_{name}_norm.weight", f"{OURS}.layers.0.{name}_norm.weight",
                   *reordered(facts, 1, layout)) for name in "qk"]


def feedforward(*names: str) -> list[Rule]:
    """Rules for matrices with the same names in the file and in Weft."""
    return [rule for name in names for rule in both(f"{BLOCK}.ffn_{name}", f"{OURS}.layers.1.{name}")]


def gate_above_up(facts: Facts) -> list[Rule]:
    """Gate and up in one matrix, gate above."""
    return [Rule((f"{BLOCK}.ffn_up.weight",), tuple(f"{OURS}.layers.1.{name}.weight" for name in ("gate", "up")),
                 (split((facts["d_ff"], facts["d_ff"])),)), *feedforward("down")]


def stacked_experts(facts: Facts) -> list[Rule]:
    """The router, and a tensor [N,F,D] or [N,D,F] for each matrix of the experts."""
    def stacked(name: str) -> Rule:
        ours = tuple(f"{OURS}.layers.1.experts.{n}.{name}.weight" for n in range(facts["n_experts"]))
        return Rule((f"{BLOCK}.ffn_{name}_exps.weight",), ours, (UNSTACK,))

    return [rename(f"{BLOCK}.ffn_gate_inp.weight", f"{OURS}.layers.1.router.weight"),
            *(stacked(name) for name in ("gate", "up", "down"))]


def _attention_output() -> list[Rule]:
    return both(f"{BLOCK}.attn_output", f"{OURS}.layers.0.output")
