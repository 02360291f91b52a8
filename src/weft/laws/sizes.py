"""Shrinking a configuration: widths, heads, windows and lengths become smaller in proportion."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weft.core.errors import ConfigError
from weft.masks import parse_mask

LEAST_WIDTH, LEAST_TURNED = 4, 4
"""The smallest width, and the fewest rotated features of a head: with a single rotary pair, pairing neighbours and
pairing halves would be the same."""


@dataclass(frozen=True)
class SizeLimits:
    """The sizes to which a configuration is shrunk, each an upper limit.

    Attributes:
        d_head: features of a head; None leaves widths and heads as they are.
        heads: whether numbers of heads shrink too.
        divisor: what widths are divided by, if ``d_head`` is None.
        repeats: repetitions of a block, and equal blocks in a row.
        vocabulary: token ids.
        reach: tokens of a window, a mask's pattern or a convolution.
        length: tokens of the context and of position tables.
        original: tokens at which a scaled rotation changes.
    """

    d_head: int | None
    heads: bool
    divisor: int
    repeats: int
    vocabulary: int
    reach: int
    length: int
    original: int


@dataclass(frozen=True)
class Scale:
    """How the widths of one configuration shrink.

    Attributes:
        sizes: the sizes to shrink to.
        before: the model's width in the configuration.
        after: the model's width in the twin.
        head: features of the first attention's heads in the configuration; None without attention.
    """

    sizes: SizeLimits
    before: int
    after: int
    head: int | None

    def width(self, value: int) -> int:
        """The width that ``value`` becomes, in proportion: an even number, at most ``value``."""
        if self.sizes.d_head is None:
            return value // self.sizes.divisor if value % self.sizes.divisor == 0 else value
        if value == self.before:
            return self.after
        least = min(value, LEAST_WIDTH)
        return min(value, max(least, 2 * math.ceil(value * self.after / self.before / 2)))


def scale_of(tree: dict[str, Any], sizes: SizeLimits) -> Scale:
    """The scale of a model's configuration: the width fits the heads of every attention in it."""
    attentions = list(_attentions(tree))
    before = tree.get("d_model") or tree.get("d_embedding") or 1
    first = next((_head(item, before) for item in attentions), None)
    if sizes.d_head is None:
        return Scale(sizes, before, before // sizes.divisor, first)
    fitting = [_heads(item, sizes)[0] for item in attentions if item.get("d_head") is None]
    return Scale(sizes, before, min(before, sizes.d_head * math.lcm(1, *fitting) * (1 if attentions else 2)), first)


def _attentions(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("n_heads"), int):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _attentions(item)


def _head(attention: dict[str, Any], d_model: int) -> int:
    return int(attention.get("d_head") or max(d_model // attention["n_heads"], 1))


def _heads(attention: dict[str, Any], sizes: SizeLimits) -> tuple[int, int | None]:
    """The numbers of query and key/value heads. A number and the ratio of both stay one, a power of two, or neither, as
    they were."""
    heads, kv_heads = attention["n_heads"], attention.get("n_kv_heads")
    if not sizes.heads or sizes.d_head is None:
        return heads, kv_heads
    keys = heads if kv_heads is None else kv_heads
    few, shared = _few(keys), _few(heads // keys)
    return few * shared, None if kv_heads is None else few


def _few(count: int) -> int:
    if count <= 3:
        return count
    return 2 if count & (count - 1) == 0 else 3


def smaller(value: Any, scale: Scale, name: str = "", head: int | None = None) -> Any:
    """Plain data of a configuration with smaller numbers.

    Args:
        value: the value of the field ``name``.
        head: features of a head of the attention that contains the field, in the configuration; None: of the first.
    """
    if isinstance(value, dict):
        return _mapping(value, scale, head or scale.head)
    if isinstance(value, list):
        return _list([smaller(item, scale, name, head) for item in value], scale, name, head or scale.head)
    if isinstance(value, str) and name == "mask":
        return re.sub(r"\w+\([\d\s,]+\)", lambda call: _mask(call[0], scale.sizes.reach), value)
    if isinstance(value, str) and name in ("maps", "also_train"):  # a twin has fewer blocks and experts
        return re.sub(r"(?<![^.])(\d+|\[[^]]*\])(?![^.])", "*", value)
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    return _number(value, scale, name, head)


def _mapping(value: dict[str, Any], scale: Scale, head: int | None) -> dict[str, Any]:
    """A part with smaller numbers; fields that depend on each other are changed together."""
    inner = _head(value, scale.before) if isinstance(value.get("n_heads"), int) else head
    small = {key: smaller(item, scale, key, inner) for key, item in value.items()}
    sizes = scale.sizes
    if isinstance(value.get("n_heads"), int):
        small["n_heads"], kv_heads = _heads(value, sizes)
        if "n_kv_heads" in value:
            small["n_kv_heads"] = kv_heads
    if isinstance(value.get("n_experts"), int) and isinstance(value.get("top_k"), int) and sizes.d_head is not None:
        small |= _experts(value)
    if isinstance(value.get("d_conv"), int) and isinstance(value.get("dilation"), int):
        small["d_conv"], small["dilation"] = _taps(value["d_conv"], value["dilation"], sizes.reach)
    if isinstance(value.get("end"), int):
        small["end"] = min(value["end"], sizes.vocabulary - 1)
    return small


def _experts(value: dict[str, Any]) -> dict[str, Any]:
    """Few experts, of which not all are chosen; where only some groups of them are open to a token, two groups of which
    one or both are."""
    count, top_k, routing = value["n_experts"], value["top_k"], value.get("routing")
    if not isinstance(routing, dict) or routing.get("n_expert_groups", 1) == 1:
        return {"n_experts": min(count, max(4, top_k + 1))}
    if count <= 2 * (top_k + 1) or routing["n_expert_groups"] % 2:
        return {}
    opened = routing.get("top_groups")
    few = opened if opened is None else min(2, math.ceil(2 * opened / routing["n_expert_groups"]))
    return {"n_experts": 2 * (top_k + 1), "routing": {**routing, "n_expert_groups": 2, "top_groups": few}}


def _list(items: list[Any], scale: Scale, name: str, head: int | None) -> list[Any]:
    """A list of blocks with at most as many equal ones in a row as a repeat may have; a list of factors for rotary
    pairs with as many as there are pairs in the twin; any other list as it is."""
    if name in ("blocks", "of"):
        most = scale.sizes.repeats
        return [item for index, item in enumerate(items) if index < most or items[index - most:index] != [item] * most]
    if name in ("short_factor", "long_factor") and scale.sizes.d_head is not None and head is not None:
        pairs = round(len(items) * 2 * scale.sizes.d_head / head / 2) if len(items) * 2 < head else \
            scale.sizes.d_head // 2
        pairs = max(LEAST_TURNED // 2, pairs)
        return [items[index * len(items) // pairs] for index in range(pairs)]
    most = scale.sizes.vocabulary
    if name == "cutoffs" and items and items[-1] >= most:  # clusters of about the same size
        return [index * most // (len(items) + 1) for index in range(1, len(items) + 1)]
    return items


def _number(value: int, scale: Scale, name: str, head: int | None) -> int:
    sizes = scale.sizes
    if name == "rot" and head is not None and sizes.d_head is not None:
        most = sizes.d_head if value >= head else sizes.d_head - 2
        return min(most, max(LEAST_TURNED, 2 * round(value * sizes.d_head / head / 2)))
    if name == "d_head" and sizes.d_head is not None:
        return min(value, sizes.d_head)
    if name == "d_value" and sizes.d_head is not None and head is not None:
        return max(1, min(value, round(value * min(head, sizes.d_head) / head)))
    if name == "div_val" and sizes.d_head is not None:  # else the last clusters of a narrow twin have no features
        return min(value, 2)
    if name == "d_conv":
        return min(value, sizes.reach)
    if name.startswith("d_") and name != "d_recurrence":  # which heads divide
        return scale.width(value)
    limits = {"repeat": sizes.repeats, "vocab_size": sizes.vocabulary, "original": sizes.original,
              "original_length": sizes.original, "context": sizes.length, "max_length": sizes.length}
    return min(value, limits.get(name, value))


def _mask(call: str, reach: int) -> str:
    """The expression of one mask with its numbers divided by the smallest power of two that brings it within
    ``reach``."""
    name, numbers = call.split("(", 1)
    values = [int(number) for number in re.findall(r"\d+", numbers)]
    for power in range(32):
        few = [max(math.ceil(value / 2**power), min(value, 2)) for value in values]
        text = f"{name}({', '.join(map(str, few))})"
        try:
            if max(parse_mask(text).borders(), default=0) <= reach:
                return text
        except ConfigError:
            continue
    return call


def _taps(kernel: int, dilation: int, reach: int) -> tuple[int, int]:
    """Kernel size and dilation with (kernel - 1) dilation < reach."""
    if (kernel - 1) * dilation < reach:
        return kernel, dilation
    apart = min(dilation, 2) if reach < 16 else dilation
    taps = min(kernel, max(2, (reach - 1) // apart + 1))
    return taps, min(apart, max(1, (reach - 1) // (taps - 1)))
