"""Masks for FlexAttention: the same rule, evaluated for one query and one key at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.masks.terms import Key, Query

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class MaskInterface(Protocol):
    """The part of the interface of `weft.masks.base.Mask` that is needed here; importing it would be circular."""

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        """See `Mask.rule`."""
        ...

    def reads(self) -> frozenset[str]:
        """See `Mask.reads`."""
        ...

    def heads(self) -> int:
        """See `Mask.heads`."""
        ...


def mask_mod(mask: MaskInterface, queries: Ticks, keys: Keys) -> MaskMod:
    """``f(row, head, query index, key index)``, all scalars, True where the query may attend to the key."""
    def at(values: Tensor, row: Tensor, index: Tensor) -> Tensor:
        return values[0, index] if values.shape[0] == 1 else values[row, index]

    of_queries, of_keys = ({name: queries.fact(name, order) for name in mask.reads()} for order in
                           (queries.order, keys.order))

    def allowed(row: Tensor, head: Tensor, query_index: Tensor, key_index: Tensor) -> Tensor:
        order, start, end = (at(part, row, query_index) for part in (queries.order, queries.begin, queries.prefix_end))
        query = Query(order, start, end, {name: at(values, row, query_index) for name, values in of_queries.items()})
        begin, valid = (None if part is None else at(part, row, key_index) for part in (keys.begin, keys.valid))
        facts = {name: at(values, row, key_index) for name, values in of_keys.items()}
        return mask.rule(query, Key(at(keys.order, row, key_index), begin, valid, facts), head)

    return allowed


def block_mask(mask: MaskInterface, queries: Ticks, keys: Keys, *, heads: int | None, block_size: int) -> BlockMask:
    """See `Mask.block_mask`."""
    from torch.nn.attention.flex_attention import create_block_mask

    fields = (queries.order, queries.begin, queries.prefix_end, keys.order, keys.begin, keys.valid)
    facts = () if queries.facts is None else (queries.facts.chunk,)
    rows = max(part.shape[0] for part in (*fields, *facts) if part is not None)
    alike = mask.heads() == 1
    return create_block_mask(mask_mod(mask, queries, keys), B=None if rows == 1 else rows,
                             H=None if alike else heads or mask.heads(), Q_LEN=queries.order.shape[1],
                             KV_LEN=keys.order.shape[1], device=keys.order.device, BLOCK_SIZE=block_size)
