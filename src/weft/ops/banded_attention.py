"""Attention by blocks of queries, each with the keys inside its band.

Time and memory grow with the tokens times the width of the band, in the backward pass too, which recomputes the weights
of a block. It is plain PyTorch: any device and dtype, heads of any size, learned biases, sinks and softcaps. The
product of a block of queries with a few hundred keys is large enough for a library's speed and small enough for a
processor's cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.masks.visible import Grid, QueryBlock, VisibleKeys, picked
from weft.ops.attention import ROWS, AttentionCall, ScoreTerm, beyond_library, joined, slow_in_library
from weft.ops.dropout import dropout
from weft.ops.forms import Form
from weft.ops.operator import again, differentiate, operator

BAND = 1.25
"""Times the keys of a block that there must be for blocks to pay: 1.0 on an AMD EPYC, 1.5 on an Intel Xeon."""
LONG_BIASED = 1024
"""Queries beyond which blocks pay in training with a bias by distance: 384 on an AMD EPYC, 2048 on an Intel Xeon. It
matters only where there is no C compiler."""


class Operands(NamedTuple):
    """Tensors of one call.

    Attributes:
        q, k, v: queries [B,T,H,E], keys [B,S,K,E], values [B,S,K,F].
        bias: added to the scores, laid on the grid for one block or for all; without a softcap it holds -inf for
            hidden keys. With one the mask is applied after the cap, since the cap of -inf is -c.
        hidden: True for hidden keys, laid likewise; None where the bias holds them.
        sinks: one more score for each head, [H].
        kept: False for weights that are dropped, [B,H,T,width].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    hidden: Tensor | None
    sinks: Tensor | None
    kept: Tensor | None
    scale: float


def banded(q: Float[Tensor, "B T H E"], k: Float[Tensor, "B S K E"], v: Float[Tensor, "B S K F"], visible: VisibleKeys,
           terms: tuple[ScoreTerm, ...], *, offset: int, scale: float, softcap: float | None, sinks: Tensor | None,
           rate: float) -> Float[Tensor, "B T H F"]:
    """The attention of a call whose mask has a band.

    Args:
        visible: which keys each query may attend to.
        terms: added to the scaled scores.
        offset: index of the first query's own key.
        softcap: c in c tanh(score / c).
        sinks: one more score for each head.
        rate: probability with which a weight is dropped.
    """
    grid = Grid.of(visible.band(), steps=q.shape[1], keys=k.shape[1], offset=offset, rows=ROWS)
    hidden, bias = visible.hidden(grid), joined(terms, grid)
    # A query without any visible key would get NaN from a softmax over -inf alone: it weighs all keys alike, and its
    # output is set to zero below.
    blind = hidden.all(-1, keepdim=True) if hidden.shape[2] == q.shape[1] else None
    if blind is not None:
        hidden = hidden & ~blind
    folded: Tensor | None = hidden
    if softcap is None:
        bias, folded = _folded(bias, hidden, q.dtype), None
    kept = dropout(q.new_ones(len(q), q.shape[2], q.shape[1], grid.width), rate) != 0 if rate else None
    y: Tensor = _BANDED(q, k, v, None if bias is None else bias.to(q.dtype), folded, sinks, kept, scale, softcap, rate,
                        grid.offset, grid.size, grid.ahead, grid.first, grid.rows)
    return y if blind is None else y.masked_fill(blind.transpose(1, 2), 0.0)


def _folded(bias: Tensor | None, hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """The bias with -inf for what is hidden."""
    if bias is None:
        return torch.zeros((), dtype=dtype, device=hidden.device).masked_fill(hidden, -torch.inf)
    rows = max(bias.shape[2], hidden.shape[2])
    bias, hidden = (x if x.shape[2] == rows else x.repeat(1, 1, -(-rows // x.shape[2]), 1)[:, :, :rows]
                    for x in (bias, hidden))
    return bias.masked_fill(hidden, -torch.inf)


def _grid(q: Tensor, k: Tensor, numbers: tuple[int, ...]) -> Grid:
    offset, size, ahead, first, rows = numbers
    return Grid(q.shape[1], k.shape[1], offset, size, ahead, first, rows)


class _Tile(NamedTuple):
    """One block: q [B K,g t,E], keys [B K,s,E], values [B K,s,F]. The query heads of a group share their keys, so their
    queries are the rows of one matrix."""

    q: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor  # [B,H,t,s], none dropped
    capped: Tensor | None  # the scores after the cap, where there is one


def _of_block(x: Tensor | None, block: QueryBlock, grid: Grid) -> Tensor | None:
    """The part of a tensor laid on the grid that belongs to one block, [#B,#H,t,s]."""
    if x is None:
        return None
    at = block.queries
    rows = slice(0, at.stop - at.start) if x.shape[2] == grid.rows else at
    return picked(x[:, :, rows], 3, block.columns)


def _tile(ops: Operands, by_head: tuple[Tensor, Tensor], block: QueryBlock, grid: Grid, softcap: float | None) -> _Tile:
    """The weights of a block, before any are dropped; the backward pass computes them again.

    Args:
        by_head: keys and values, [B K,S,E] and [B K,S,F].
        block: which queries and keys.
        softcap: c in c tanh(score / c).
    """
    batch, _, heads, _ = ops.q.shape
    rows = block.queries.stop - block.queries.start
    k, v = (picked(x, 1, block.keys) for x in by_head)
    q = ops.q[:, block.queries].transpose(1, 2).reshape(len(k), -1, ops.q.shape[3]) * ops.scale
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, heads, rows, -1)
    bias, hidden = (_of_block(x, block, grid) for x in (ops.bias, ops.hidden))
    if bias is not None:
        scores = scores.add_(bias)
    capped = None
    if softcap is not None:
        scores = capped = softcap * torch.tanh(scores / softcap)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    if ops.sinks is None:
        return _Tile(q, k, v, scores.softmax(-1), capped)
    # The sink is one more term of the softmax's denominator: exp(total) / (exp(total) + exp(sink)) is the share of the
    # keys, a sigmoid of the difference.
    wide = torch.promote_types(scores.dtype, torch.float32)
    total = scores.to(wide).logsumexp(-1, keepdim=True)
    share = torch.sigmoid(total - ops.sinks.to(wide)[:, None, None]).to(scores.dtype)
    return _Tile(q, k, v, scores.softmax(-1) * share, capped)


def _by_head(x: Tensor) -> Tensor:
    """[B,S,K,E] as [B K,S,E]."""
    return x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3])


def _forward(ops: Operands, softcap: float | None, rate: float, grid: Grid) -> Tensor:
    batch, _, heads, _ = ops.q.shape
    by_head = _by_head(ops.k), _by_head(ops.v)
    outputs = []
    for block in grid.blocks():
        tile = _tile(ops, by_head, block, grid, softcap)
        weights = _dropped(tile.weights, _of_block(ops.kept, block, grid), rate)
        y = torch.bmm(weights.view(len(tile.k), -1, tile.k.shape[1]), tile.v)
        outputs.append(y.view(batch, heads, -1, y.shape[2]).transpose(1, 2))
    return torch.cat(outputs, 1)


def _dropped(x: Tensor, kept: Tensor | None, rate: float) -> Tensor:
    return x if kept is None else x * kept * (1 / (1 - rate))


def _kernel(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, hidden: Tensor | None, sinks: Tensor | None,
            kept: Tensor | None, scale: float, softcap: float | None, rate: float, offset: int, size: int, ahead: int,
            first: int, rows: int) -> Tensor:
    grid = _grid(q, k, (offset, size, ahead, first, rows))
    return _forward(Operands(q, k, v, bias, hidden, sinks, kept, scale), softcap, rate, grid)


def _shape(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return q.new_empty(*q.shape[:3], v.shape[3])


def _backward_kernel(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, hidden: Tensor | None,
                     sinks: Tensor | None, kept: Tensor | None, scale: float, softcap: float | None,
                     rate: float, learns: bool, offset: int, size: int, ahead: int, first: int,
                     rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, of a learned bias and of the sinks; empty tensors where there is none.

    Blocks overlap in their keys, so dk and dv are added up over blocks. ``rising`` is the gradient of a block's output,
    ``falling`` that of its weights.
    """
    ops, grid = Operands(q, k, v, bias, hidden, sinks, kept, scale), _grid(q, k, (offset, size, ahead, first, rows))
    by_head = _by_head(k), _by_head(v)
    dq, dk, dv = torch.empty(q.shape, dtype=q.dtype, device=q.device), *(x.new_zeros(x.shape) for x in (k, v))
    dbias = torch.zeros_like(bias) if learns and bias is not None else q.new_empty(0)
    dsinks = q.new_empty(0) if sinks is None else torch.zeros_like(sinks)
    for block in grid.blocks():
        tile = _tile(ops, by_head, block, grid, softcap)
        flat = (*tile.q.shape[:2], tile.k.shape[1])
        rising = dy[:, block.queries].transpose(1, 2).reshape(*tile.q.shape[:2], -1)
        lost = _of_block(kept, block, grid)
        _add(dv, block.keys, _by_token(torch.bmm(_dropped(tile.weights, lost, rate).view(flat).transpose(1, 2), rising),
                                       v))
        falling = _dropped(torch.bmm(rising, tile.v.transpose(1, 2)).view(tile.weights.shape), lost, rate)
        scores = torch._softmax_backward_data(falling, tile.weights, -1, tile.weights.dtype)
        if sinks is not None:
            dsinks -= _to_sinks(tile.weights, falling).to(sinks.dtype)
        if tile.capped is not None and softcap is not None:
            scores = scores * (1 - (tile.capped / softcap).square())
        if learns and bias is not None:
            _add_to_bias(dbias, scores, block, grid)
        scores = scores.view(flat)
        dq[:, block.queries] = torch.bmm(scores, tile.k).view(*tile.weights.shape[:3], -1).transpose(1, 2) * scale
        _add(dk, block.keys, _by_token(torch.bmm(scores.transpose(1, 2), tile.q), k))
    return dq, dk, dv, dbias, dsinks


def _by_token(x: Tensor, like: Tensor) -> Tensor:
    """[B K,S,E] as [B,S,K,E]."""
    return x.view(like.shape[0], like.shape[2], *x.shape[1:]).transpose(1, 2)


def _add(total: Tensor, parts: tuple[slice, ...], x: Tensor) -> None:
    at = 0
    for part in parts:
        size = part.stop - part.start
        total[:, part] += x[:, at : at + size]
        at += size


def _to_sinks(weights: Tensor, falling: Tensor) -> Tensor:
    """[H]: of a softmax, d(weight_j)/d(sink) = -weight_j weight_sink, summed over keys with their gradients."""
    rest = 1 - weights.sum(-1)
    return (rest * (weights * falling).sum(-1)).sum((0, 2))


def _add_to_bias(dbias: Tensor, scores: Tensor, block: QueryBlock, grid: Grid) -> None:
    at = block.queries
    rows = slice(0, at.stop - at.start) if dbias.shape[2] == grid.rows else at
    for dim in (0, 1):
        if dbias.shape[dim] == 1:
            scores = scores.sum(dim, keepdim=True)
    _add(dbias[:, :, rows].movedim(3, 1), block.columns, scores.movedim(3, 1))


def _backward_shapes(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, hidden: Tensor | None,
                     sinks: Tensor | None, kept: Tensor | None, scale: float, softcap: float | None, rate: float,
                     learns: bool, *_: Any) -> tuple[Tensor, ...]:
    return (*(x.new_empty(x.shape) for x in (q, k, v)),
            torch.empty_like(bias) if learns and bias is not None else q.new_empty(0),
            q.new_empty(0) if sinks is None else torch.empty_like(sinks))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:7])
    ctx.rest = inputs[7:]


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    scale, softcap, rate, *numbers = ctx.rest
    q, k, v, bias, hidden, sinks, kept = tensors
    ops = Operands(q, k, v, bias, hidden, sinks, kept, scale)
    if torch.is_grad_enabled():  # the backward pass is differentiated itself: through plain operators
        grid = _grid(ops.q, ops.k, tuple(numbers))

        def plain(q: Tensor, k: Tensor, v: Tensor, *others: Tensor | None) -> Tensor:
            bias, hidden, sinks, kept = others
            return _forward(Operands(q, k, v, bias, hidden, sinks, kept, scale), softcap, rate, grid)

        return (*again(plain, tensors, dy), *[None] * len(ctx.rest))
    learns = ctx.needs_input_grad[3]
    dq, dk, dv, dbias, dsinks = _BACKWARD(dy, *tensors, scale, softcap, rate, learns, *numbers)
    return (dq, dk, dv, dbias if learns else None, None, None if ops.sinks is None else dsinks, None,
            *[None] * len(ctx.rest))


_BANDED = operator("banded_attention", _kernel, _shape)
_BACKWARD = operator("banded_attention_backward", _backward_kernel, _backward_shapes)
differentiate("banded_attention", _gradient, _save)


def banded_flops(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """q.k and weights.v, as if over all pairs."""
    return _products(q, k.shape[1] * q.shape[1], _widths(q, v))


def banded_backward_flops(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """Scores again, then gradients of v, weights, q and k, as if over all pairs."""
    return _products(q, k.shape[1] * q.shape[1], _widths(q, v, backward=True))


def banded_skipped(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> int:
    """The number of these operations for pairs outside all blocks, which are not done."""
    return _products(q, _outside(q, k, rest), _widths(q, v))


def banded_backward_skipped(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> int:
    """The number of the backward pass's operations for pairs outside all blocks, which are not done."""
    return _products(q, _outside(q, k, rest), _widths(q, v, backward=True))


def _products(q: Tensor, pairs: int, width: int) -> int:
    return 2 * q.shape[0] * q.shape[2] * width * pairs


def _widths(q: Tensor, v: Tensor, *, backward: bool = False) -> int:
    """Features of the products of one pair."""
    return 3 * q.shape[3] + 2 * v.shape[3] if backward else q.shape[3] + v.shape[3]


def _outside(q: Tensor, k: Tensor, rest: tuple[Any, ...]) -> int:
    """Pairs of a query and a key outside its block."""
    inside: int = sum((block.queries.stop - block.queries.start) * sum(part.stop - part.start for part in block.keys)
                 for block in _grid(q, k, rest[-5:]).blocks())
    return q.shape[1] * k.shape[1] - inside


def _by_blocks(call: AttentionCall) -> Tensor:
    offset = call.visible.offset
    assert offset is not None, "the form serves calls whose keys lie in order"
    return banded(call.q, call.k, call.v, call.visible, call.terms, offset=offset, scale=call.scale,
                  softcap=call.softcap, sinks=call.sinks, rate=call.dropout)


def _hindrance(call: AttentionCall) -> str | None:
    if call.needs_weights():
        return "it returns no weights"
    if call.sinks is not None and call.sinks.dim() > 1:
        return "its sinks differ by query"
    if call.visible.offset is None:
        return "the keys are not in the order of tokens"
    if call.visible.band().ahead is None:
        return "the mask does not bound later keys"
    return "there are no queries" if call.q.shape[1] == 0 else None


def _wide_band(call: AttentionCall) -> str | None:
    """Why blocks do not pay: they do for bands that hide most keys, and where the library's kernel does not serve."""
    steps, keys = call.q.shape[1], call.k.shape[1]
    if steps < 2 * ROWS:
        return "too few queries"
    if beyond_library(call) is not None or slow_in_library(call) is not None:
        return None
    band = call.visible.band()
    if band.size is not None and BAND * (band.size + ROWS) <= keys:
        return None
    return None if band.ahead == 0 and _biased_training(call) else "the mask hides too few keys"


def _biased_training(call: AttentionCall) -> bool:
    """Whether this is training with a bias by distance in a row that is long enough for blocks. With a bias the
    library's kernel needs a mask of all pairs for each head, from memory, and computes later keys as well; the blocks
    share one tile of the bias and leave out later keys. In bfloat16 they would round the scores, which the library
    keeps in float32."""
    return (torch.is_grad_enabled() and call.q.device.type == "cpu" and call.q.dtype != torch.bfloat16
            and bool(call.terms) and all(term.by_distance for term in call.terms)
            and call.q.shape[1] > LONG_BIASED)


FORM: Form[AttentionCall, Tensor] = Form(
    "banded", _by_blocks, "blocks of queries, each with its band of keys", transformed=False, serves=_hindrance,
    worth=_wide_band,
    flops={"weft.banded_attention": banded_flops, "weft.banded_attention_backward": banded_backward_flops},
    known_as=("window", "local", "sliding", "blocks"))
"""Of `weft.ops.attention`."""
