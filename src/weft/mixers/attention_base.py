"""The common base of self-attention and cross-attention: sizes of heads, settings of scores, and the form that
computes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.declarations import Adjustable
from weft.core.errors import ConfigError, nearest_meaning
from weft.core.part_config import Dims, Settings
from weft.ops.attention import ATTENTION, AttentionCall


class ScoreSettings(Settings):
    """How scores are made from q.k: ``scale`` (None: 1/sqrt(d_head), or what the position scheme prescribes),
    ``softcap`` c in c tanh(s/c), and the probability with which a weight is dropped in training.

    Attributes:
        scale: factor of q.k; None: 1/sqrt(d_head), or what the position scheme prescribes.
        softcap: c in c tanh(s / c); None: scores are not bounded.
        dropout: probability with which a weight is dropped in training.
    """

    scale: float | None = None
    softcap: float | None = Field(default=None, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)


@dataclass(frozen=True)
class HeadSizes:
    """Query heads H, key/value heads K, head size E and value size F."""

    heads: int
    kv_heads: int
    d_head: int
    d_value: int

    def split(self) -> tuple[int, int, int]:
        """Widths of the fused projection: queries, keys, values."""
        return self.heads * self.d_head, self.kv_heads * self.d_head, self.kv_heads * self.d_value


def head_sizes(n_heads: int, n_kv_heads: int | None, d_head: int | None, d_value: int | None, dims: Dims) -> HeadSizes:
    """The sizes of the heads, defaults filled in. Raises `ConfigError`: the numbers of heads or d_model do not
    divide."""
    kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    if n_heads % kv_heads:
        raise dims.problem("n_kv_heads", f"{n_heads} query heads do not divide into {kv_heads} key/value heads.",
                           "Choose n_kv_heads among the divisors of n_heads.")
    if d_head is None and dims.d_model % n_heads:
        raise dims.problem("n_heads", f"d_model {dims.d_model} does not divide into {n_heads} heads.",
                           "Choose another number of heads, or give d_head.")
    size = dims.d_model // n_heads if d_head is None else d_head
    return HeadSizes(n_heads, kv_heads, size, size if d_value is None else d_value)


def named_form(backend: str) -> str | None:
    """The form of attention that a configuration's ``backend`` names; None: the chooser's."""
    return None if backend == "auto" else backend


def require_form(backend: str, softcap: float | None, dims: Dims) -> None:
    """Raise unless ``backend`` is a form of attention that serves calls with this softcap. Raises `ConfigError`: with
    the nearest name."""
    name = named_form(backend)
    if name is None:
        return
    try:
        ATTENTION.form(name)
    except ConfigError:
        known = {"auto": (), **{form.name: form.known_as for form in ATTENTION.forms()}}
        raise dims.problem("backend", f"attention has no form called {name!r}.", nearest_meaning(name, known)) from None
    if softcap is not None and name in ("sdpa", "grouped_rows", "native"):
        raise dims.problem("backend", f"the form {name!r} cannot express a softcap.", "Use 'auto' or 'reference'.")


def attend(layer: Adjustable, call: AttentionCall, form: str | None) -> Float[Tensor, "B T H F"]:
    """The attention of a layer's call by the form that its configuration names; where a probe requests the weights, by
    a form that computes them."""
    if layer.asked is None or "weights" not in layer.asked:
        return ATTENTION(call, form)
    return ATTENTION(replace(call, record=partial(layer.asked.give, "weights")))
