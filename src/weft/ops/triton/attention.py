"""Attention by PyTorch's FlexAttention: one kernel in Triton's language for windows, documents, prefixes, biases by
distance, soft caps and sinks, forward and backward, which skips every block of 128 queries and 128 keys whose pairs are
all hidden (Dong et al. 2024, arXiv:2412.05496).

A mask reaches the kernel in one of two ways. Where each query's keys are known to be consecutive (causal masks, windows
to one side or both, documents, padding) it is two whole numbers for each query, the first and the last key: one program
serves all of these, whatever the width of a window. Any other mask is its rule (`weft.masks.base.Mask.rule`), which
PyTorch compiles into the kernel, one program for each expression. Biases by distance are a table with one number for
each head and distance.

Which blocks hold a visible pair is found once for a call of the model and kept for all layers (`Ticks.once`): from the
first and last keys, otherwise from the rule, for some queries at a time. No tensor of all pairs is made.

The kernel is compiled once for each `KernelKind` and again where rows first have another length or number; that second
program takes any. In a model that is compiled a call is a part of its graph. On a processor, which has no kernel with a
backward pass, PyTorch's own definition of the operator computes the same from all pairs: for tests.

With sinks the output of the keys is multiplied by their share of the weights, sigmoid(z - sink), where z is the
logarithm of the sum of their exponentials.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple, cast, final

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from weft.core.compiling import compiler_traces
from weft.masks import Documents, Mask
from weft.masks.terms import Key, Query
from weft.masks.visible import KeyInterval, MaskedKeys, VisibleKeys, ticks_at
from weft.ops.attention import AttentionCall, beyond_library
from weft.ops.forms import Form
from weft.ops.triton.library import devices, offer, why_not

SIDE = 128
"""Queries and keys of a block: the largest tile of the kernels, forward and backward, divides it."""
PAIRS = 1 << 25
"""Pairs of a query and a key for which a rule is evaluated at once: 32 MiB for each of its operations."""
FEWEST = 512
"""Keys from which the form is chosen: with fewer, starting a compiled function takes longer than the kernel."""
FEWER_STAGES = {"fwd_num_stages": 2}
"""Options of the forward kernel with biases: it loads a tile of them ahead for each stage of its loop, 64 KiB, and with
the usual three stages asks for 242 KiB of shared memory at 64 features, where an H100 has 227."""
NARROWEST = 16
"""Features of a head, at least: the smallest side of a product on the hardware."""


@final
class KeptBlocks(NamedTuple):
    """Which blocks are computed: for each block of queries, and for each block of keys, how many others it has pairs
    with and their indices, the first ``count`` of a row; of blocks with some visible pairs and of those with all."""

    counts: Int32[Tensor, "#B #H n"]
    places: Int32[Tensor, "#B #H n m"]
    full_counts: Int32[Tensor, "#B #H n"]
    full_places: Int32[Tensor, "#B #H n m"]
    query_counts: Int32[Tensor, "#B #H m"]
    query_places: Int32[Tensor, "#B #H m n"]
    full_query_counts: Int32[Tensor, "#B #H m"]
    full_query_places: Int32[Tensor, "#B #H m n"]

    @staticmethod
    def of(some: Bool[Tensor, "#B #H n m"], every: Bool[Tensor, "#B #H n m"]) -> KeptBlocks:
        """From whether a block has any visible pair, and whether all of its pairs are visible."""
        part = some & ~every
        return KeptBlocks(*_ordered(part), *_ordered(every), *_ordered(part.mT), *_ordered(every.mT))


def _ordered(dense: Tensor) -> tuple[Tensor, Tensor]:
    """How many entries of each row are true, and the indices of all, those of true entries first."""
    places = torch.argsort(dense.to(torch.int8), dim=-1, descending=True, stable=True)
    return dense.sum(-1, dtype=torch.int32).contiguous(), places.to(torch.int32).contiguous()


@final
class FlexKeys(NamedTuple):
    """Which keys the queries of a call see.

    Attributes:
        rule: of the mask; None: each query's keys are consecutive.
        packed: whether documents are kept apart besides.
        names: of ``fields``.
        fields: what the function of a pair reads, [#B,T] of queries or [#B,S] of keys.
    """

    rule: Mask | None
    packed: bool
    names: tuple[str, ...]
    fields: tuple[Tensor, ...]
    blocks: KeptBlocks


@final
class KernelKind(NamedTuple):
    """The properties of a call that a kernel is compiled for, apart from shapes and dtypes. The first three are those
    of `FlexKeys`, and scale and softcap those of the call.

    Attributes:
        biases: whether there is a table of biases: 0, or its dimensions.
        sinks: whether there are any: 0, or their dimensions.
    """

    rule: Mask | None
    packed: bool
    names: tuple[str, ...]
    scale: float
    softcap: float | None
    biases: int
    sinks: int


def seen_by(visible: VisibleKeys, q: Tensor, k: Tensor) -> FlexKeys:
    """Which keys the queries of a call see; found once for all layers of a call of the model.

    Args:
        visible: all keys, or those that a mask allows.
        q: queries [B,T,H,E].
        k: keys [B,S,K,E].
    """
    def find() -> FlexKeys:
        interval = visible.interval()
        if interval is None:
            assert isinstance(visible, MaskedKeys), "other keys are consecutive"
            return _by_rule(visible, k.shape[1])
        return _consecutive(interval, q.shape[1], k.shape[1], q.device)

    if not isinstance(visible, MaskedKeys) or visible.keys.layout is None:
        return find()
    return visible.ticks.once(("blocks", visible.rule, visible.keys.layout), find)


def _consecutive(interval: KeyInterval, steps: int, keys: int, device: torch.device) -> FlexKeys:
    own = torch.arange(interval.offset, interval.offset + steps, device=device)[None]
    first = torch.zeros_like(own) if interval.back is None else (own - interval.back).clamp(min=0)
    last = torch.full_like(own, keys - 1) if interval.ahead is None else (own + interval.ahead).clamp(max=keys - 1)
    first = first if interval.start is None else torch.maximum(first, interval.start)
    last = last if interval.stop is None else torch.minimum(last, interval.stop)
    first, last = torch.broadcast_tensors(first, last)
    both = torch.stack([first, last], -1)
    blocks = torch.cat([both, both[:, -1:].expand(-1, -steps % SIDE, -1)], 1).unflatten(1, (-1, SIDE))
    least, most = blocks.amin(2), blocks.amax(2)  # [#B,n,2]
    begin = torch.arange(0, keys, SIDE, device=device)  # of blocks of keys
    some = (least[..., :1] < begin + SIDE) & (most[..., 1:] >= begin)
    every = (most[..., :1] <= begin) & (least[..., 1:] >= begin + SIDE - 1) & _whole(steps, device)[:, None]
    fields = tuple(x.to(torch.int32).contiguous() for x in (first, last))
    return FlexKeys(None, False, ("first", "last"), fields, KeptBlocks.of(some[:, None], every[:, None]))


def _whole(size: int, device: torch.device) -> Tensor:
    """Which blocks have all of their tokens."""
    return torch.arange(SIDE, size + SIDE, SIDE, device=device) <= size


def _by_rule(visible: MaskedKeys, keys: int) -> FlexKeys:
    ticks, own = visible.ticks, visible.keys
    steps = ticks.order.shape[1]
    read = sorted(visible.rule.mask.reads())
    fields = {"order": ticks.order, "begin": ticks.begin, "prefix_end": ticks.prefix_end, "key_order": own.order,
              "key_begin": own.begin, "key_valid": own.valid,
              **{f"fact {name}": ticks.fact(name, ticks.order) for name in read},
              **{f"key_fact {name}": ticks.fact(name, own.order) for name in read}}
    given = {name: x if x.dtype == torch.bool else x.to(torch.int32) for name, x in fields.items() if x is not None}
    rows = max(len(x) for x in given.values()) * (visible.rule.heads or 1)
    stride = max(1, PAIRS // (rows * keys * SIDE)) * SIDE
    pieces = [_reduced(visible.written(ticks_at(ticks, slice(at, at + stride)), own)) for at in range(0, steps, stride)]
    some, every = (torch.cat(each, 2) for each in zip(*pieces, strict=True))
    return FlexKeys(visible.rule.mask, ticks.packed, tuple(given), tuple(x.contiguous() for x in given.values()),
                    KeptBlocks.of(some, every))


def _reduced(allowed: Bool[Tensor, "#B #H t S"]) -> tuple[Tensor, Tensor]:
    """Whether any pair of a block is visible, and whether all are, [#B,#H,n,m]."""
    padded = F.pad(allowed, (0, -allowed.shape[3] % SIDE, 0, -allowed.shape[2] % SIDE))
    tiles = padded.unflatten(3, (-1, SIDE)).unflatten(2, (-1, SIDE)).transpose(3, 4).flatten(4)
    return tiles.any(-1), tiles.all(-1)


def _at(values: Tensor, row: Tensor, index: Tensor) -> Tensor:
    return values[index] if values.dim() == 1 else values[row, index]


def _visible(kind: KernelKind) -> Callable[..., Tensor]:
    """The function of a row, a head, a query's and a key's index and of the fields: whether the query sees the key."""
    if kind.rule is None:
        return lambda row, head, query, key, first, last: (
            (key >= _at(first, row, query)) & (key <= _at(last, row, query)))
    rule, packed, names = kind.rule, kind.packed, kind.names

    def allowed(row: Tensor, head: Tensor, query: Tensor, key: Tensor, *fields: Tensor) -> Tensor:
        found = {name: _at(x, row, key if name.startswith("key_") else query)
                 for name, x in zip(names, fields, strict=True)}
        facts, key_facts = ({name.removeprefix(start): x for name, x in found.items() if name.startswith(start)}
                            for start in ("fact ", "key_fact "))
        of_query = Query(found["order"], found["begin"], found["prefix_end"], facts)
        of_key = Key(found["key_order"], found.get("key_begin"), found.get("key_valid"), key_facts)
        seen = rule.rule(of_query, of_key, head)
        if packed:
            seen = seen & Documents().rule(of_query, of_key, head)
        return seen if of_key.valid is None else seen & of_key.valid

    return allowed


def _scored(kind: KernelKind) -> Callable[..., Tensor]:
    """The function of a score, a row, a head, a query's and a key's index, of the table of biases and of the place in
    it of each query's bias for the first key: the score with its bias, capped."""
    cap = kind.softcap

    def scored(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor, *given: Tensor) -> Tensor:
        if given:
            table, places = given
            at = places[query] - key
            score = score + (table[head, at] if kind.biases == 2 else table[row, head, at])
        return score if cap is None else cap * torch.tanh(score / cap)

    return scored


def _biases(call: AttentionCall) -> tuple[Tensor, ...]:
    """A table of the sum of all terms, [H,2T-1] or [B,H,2T-1], the greatest distance first, and the place in it of each
    query's bias for the first key, [T]."""
    if not call.terms:
        return ()
    steps, heads = call.q.shape[1:3]
    found = [term.distances(1 - steps, 2 * steps - 1) for term in call.terms]
    table = sum(found[1:], found[0]).float().flip(-1)
    table = table.expand(-1, heads, -1).contiguous()
    places = torch.arange(steps - 1, 2 * steps - 1, device=table.device, dtype=torch.int32)
    return table[0] if len(table) == 1 else table, places


def attend(kind: KernelKind, q: Float[Tensor, "B T H E"], k: Float[Tensor, "B S K E"], v: Float[Tensor, "B S K F"],
           sinks: Tensor | None, blocks: KeptBlocks, fields: tuple[Tensor, ...],
           biases: tuple[Tensor, ...]) -> Float[Tensor, "B T H F"]:
    """The attention of a call.

    Args:
        sinks: as in `AttentionCall`.
        fields: those of `FlexKeys`.
        biases: a table of biases and where each query's begin in it; nothing without biases.
    """
    from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

    visible, scored = _visible(kind), _scored(kind)
    given = tuple(x.squeeze(0) if len(x) == 1 else x for x in fields)

    def allowed(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return visible(row, head, query, key, *given)

    def changed(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return scored(score, row, head, query, key, *biases)

    mask = BlockMask((q.shape[1], k.shape[1]), *blocks, BLOCK_SIZE=(SIDE, SIDE), mask_mod=allowed)
    turned = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    total: Tensor | None
    if not compiler_traces():
        y, total = _defined(turned, scored, (*mask.as_tuple()[:-1], visible), kind, biases, given)
    elif not q.is_cuda:
        y, total = _defined(turned, changed, mask.as_tuple(), kind)
    else:
        y, aux = flex_attention(*turned, changed if biases or kind.softcap else None, mask, kind.scale,
                                enable_gqa=q.shape[2] != k.shape[2], return_aux=AuxRequest(lse=kind.sinks > 0),
                                kernel_options=cast(Any, FEWER_STAGES) if biases else None)
        total = aux.lse
    if sinks is not None and total is not None:
        own = sinks.float()[:, None] if kind.sinks == 1 else sinks.float().transpose(1, 2)
        y = (y * torch.sigmoid(total - own)[..., None]).to(q.dtype)
    return y.transpose(1, 2)


def _defined(turned: tuple[Tensor, Tensor, Tensor], scored: Callable[..., Tensor], mask: tuple[Any, ...],
             kind: KernelKind, *buffers: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The outputs, and the logarithms of the sums of exponentials, by PyTorch's operator itself: the function that
    users call refuses gradients on a processor, though the operator has them there.

    Args:
        turned: queries, keys and values, [B,H,T,E].
        mask: a block mask's parts, the function of a pair last.
        buffers: what both functions take after indices, where they hold nothing themselves.
    """
    options = {"BACKEND": "AUTO", "PRESCALE_QK": False, "ROWS_GUARANTEED_SAFE": False, "BLOCKS_ARE_CONTIGUOUS": False,
               "WRITE_DQ": True, "OUTPUT_LOGSUMEXP": torch.is_grad_enabled() or kind.sinks > 0, "OUTPUT_MAX": False}
    y, total, _ = torch.ops.higher_order.flex_attention(*turned, scored, mask, kind.scale, options, *buffers)
    return y, total * math.log(2)


def compiled(kind: KernelKind, like: tuple[Any, ...] = (), backend: str = "inductor") -> Callable[..., Tensor]:
    """`attend` for a kind of calls, which is compiled when it is first called and when sizes first change.

    It has code of its own: PyTorch keeps what it compiled, and counts how often it compiled again, by the code of a
    function, and compiles no more after eight times.

    Args:
        like: what else tells calls apart that no program serves together (`_likeness`).
        backend: of `torch.compile`.
    """
    def attention(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, blocks: KeptBlocks, fields: tuple[Tensor, ...],
                  biases: tuple[Tensor, ...]) -> Tensor:
        return attend(kind, q, k, v, sinks, blocks, fields, biases)

    # What is known of sizes that change is kept by the name of a function.
    name = f"flex_attention_{zlib.crc32(repr((kind, like)).encode()):08x}"
    own = FunctionType(attention.__code__.replace(co_name=name), attention.__globals__, name, None,
                       attention.__closure__)
    run: Callable[..., Tensor] = torch.compile(own, fullgraph=True, backend=backend)
    return run


_compiled = cache(compiled)


def _likeness(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, blocks: KeptBlocks, fields: tuple[Tensor, ...],
              biases: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """The properties besides, which are the same for calls that differ only in numbers of rows, queries and keys."""
    tensors = (q, k, v, *(() if sinks is None else (sinks,)), *biases[:1])
    return (q.device, q.dtype, *((*x.shape[2:], x.requires_grad) for x in tensors[:3]),
            *((x.dtype, x.requires_grad) for x in tensors[3:]), *(len(x) == 1 for x in (q, *blocks[:1], *fields)),
            torch.is_grad_enabled())


def prepared(call: AttentionCall) -> tuple[KernelKind, tuple[Any, ...]]:
    """The kind of a call, and the other arguments of `attend`, as narrow as autocast makes those of PyTorch."""
    sinks, biases, device = call.sinks, _biases(call), call.q.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else call.q.dtype
    tensors = (call.q.to(dtype), call.k.to(dtype), call.v.to(dtype))
    seen = seen_by(call.visible, call.q, call.k)
    kind = KernelKind(seen.rule, seen.packed, seen.names, call.scale, call.softcap, biases[0].dim() if biases else 0,
                0 if sinks is None else sinks.dim())
    return kind, (*tensors, sinks, seen.blocks, seen.fields, biases)


def _run(call: AttentionCall) -> Tensor:
    kind, arguments = prepared(call)
    if compiler_traces() or not call.q.is_cuda or isinstance(call.q, FakeTensor):
        return attend(kind, *arguments)
    return _compiled(kind, _likeness(*arguments))(*arguments)


def _hindrance(call: AttentionCall) -> str | None:
    """Why FlexAttention cannot serve."""
    if call.needs_weights():
        return "it returns no weights"
    if call.dropout:
        return "it has no dropout"
    if not (isinstance(call.visible, MaskedKeys) or call.visible.everything):
        return "the keys that exist have no order"
    if not all(term.by_distance for term in call.terms):
        return "a bias depends on more than distance"
    if any(term.learns for term in call.terms) and torch.are_deterministic_algorithms_enabled():
        return "sums of a learned bias have no fixed order"
    if call.q.shape[1] < 2 or not (call.q.numel() and call.k.numel() and call.v.numel()):
        return "it takes several queries"
    if call.k.dtype != call.q.dtype or call.v.dtype != call.q.dtype:
        return "its tensors are of several dtypes"
    if call.q.is_cuda and min(call.q.shape[3], call.v.shape[3]) < NARROWEST:
        return f"a head has fewer than {NARROWEST} features"
    real = call.q.is_cuda and not (compiler_traces() or isinstance(call.q, FakeTensor))
    if real and is_in_torch_dispatch_mode(False):
        return "something observes operators"
    return why_not()


def _elsewhere(call: AttentionCall) -> str | None:
    """Why it does not pay: PyTorch's fused kernel has no mask to read, or too little to skip."""
    if call.k.shape[1] < FEWEST or call.q.shape[1] < SIDE:
        return "too few queries or keys"
    plain = (call.visible.causal or call.visible.everything) and not call.terms
    return "PyTorch's fused kernel serves it" if plain and beyond_library(call) is None else None


def flex_flops(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """q.k and weights.v of queries [B,H,T,E], keys [B,K,S,E] and values [B,K,S,F], as if over all pairs: which blocks
    are left out is known with the numbers of a mask alone."""
    return 2 * q.shape[:3].numel() * k.shape[2] * (q.shape[3] + v.shape[3])


def flex_backward_flops(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """Scores again, then gradients of v, weights, q and k, as if over all pairs."""
    return 2 * q.shape[:3].numel() * k.shape[2] * (3 * q.shape[3] + 2 * v.shape[3])


FORM: Form[AttentionCall, Tensor] = Form(
    "flex", _run, "FlexAttention, which skips hidden blocks", devices=devices(),
    dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}), transformed=False, serves=_hindrance,
    worth=_elsewhere, offer=offer(),
    flops={"flex_attention": flex_flops, "flex_attention_backward": flex_backward_flops},
    known_as=("flex_attention", "block_mask"))
"""Of `weft.ops.attention`."""
