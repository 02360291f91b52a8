"""RWKV-4's decaying mean, forward and backward: a program has some channels of one segment of a row.

    m_t = max(m_{t-1} + w, k_t),   a_t = e^{m_{t-1} + w - m_t},   b_t = e^{k_t - m_t},
    over_t = a_t over_{t-1} + b_t v_t,   under_t = a_t under_{t-1} + b_t,   y_t from the state before and e^{u + k_t}

A thread has one channel. Of the two exponentials beside a maximum one is 1, so that each maximum costs one. Tokens are
taken in tiles: all numbers of a tile are read at once.

Where rows and channels alone would leave most of the GPU idle, rows are cut into segments: `segments` computes the
state that each leaves of an empty one, and the logarithm of its factor on what enters, `chain` the states between them,
and only then `forward` the outputs; it stores the state before each tile. `backward` goes over tiles from the last to
the first and computes the states within one again; `later` and `below` are the gradients of the two sums after a token.
Where rows are cut it runs twice, first for the gradients between segments alone.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
EMPTY = tl.constexpr(-1e38)
NEVER = tl.constexpr(-2e38)


@triton.jit
def _shares(first, second):
    """e^first and e^second, both divided by the larger."""
    less = tl.exp2(-tl.abs(first - second) * LOG2E)
    return tl.where(first >= second, 1.0, less), tl.where(first >= second, less, 1.0)


@triton.jit
def _marks(marks, token, last, missing: tl.constexpr, GIVEN: tl.constexpr):
    """Whether a token of the segment is marked; ``missing`` where no marks are given."""
    found = (token < last) & missing
    if GIVEN:
        found = (tl.load(marks + token, mask=token < last, other=0) != 0) & (token < last)
    return found


@triton.jit
def _tile(x, first, last, width, held, TILE: tl.constexpr):
    found = ()
    for i in tl.static_range(TILE):
        found = found + (tl.load(x + (first + i) * width, mask=held & (first + i < last), other=0.0),)
    return found


@triton.jit
def _emptied(over, under, top, new):
    return tl.where(new, 0.0, over), tl.where(new, 0.0, under), tl.where(new, EMPTY, top)


@triton.jit
def _factors(top, key, rate, taken):
    """a_t and b_t, and m_t: those of a token that is not taken leave the state as it is."""
    kept, enters = _shares(top + rate, key)
    most = tl.maximum(top + rate, key)
    return tl.where(taken, kept, 1.0), tl.where(taken, enters, 0.0), tl.where(taken, most, top)


@triton.jit
def forward(k, v, decay, bonus, entries, starts, valid, y, after, kept, steps, segment, width, STARTS: tl.constexpr,
            VALID: tl.constexpr, KEEPS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr):
    row, rows, part = tl.program_id(1).to(tl.int64), tl.num_programs(1), tl.program_id(2)
    width = tl.cast(width, tl.int64)
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held, place = d < width, row * steps * width + d
    rate, own = tl.load(decay + d, mask=held, other=0.0), tl.load(bonus + d, mask=held, other=0.0)
    state = entries + (part * rows + row) * 3 * width + d
    over, under = tl.load(state, mask=held, other=0.0), tl.load(state + width, mask=held, other=0.0)
    top = tl.load(state + 2 * width, mask=held, other=0.0)
    last = min((part + 1) * segment, steps)
    for first in range(part * segment, last, TILE):
        if KEEPS:
            border = kept + (first // TILE * rows + row) * 3 * width + d
            tl.store(border, over, mask=held)
            tl.store(border + width, under, mask=held)
            tl.store(border + 2 * width, top, mask=held)
        keys = _tile(k + place, first, last, width, held, TILE)
        values = _tile(v + place, first, last, width, held, TILE)
        for i in tl.static_range(TILE):
            token = first + i
            if STARTS:
                over, under, top = _emptied(over, under, top, _marks(starts + row * steps, token, last, False, True))
            past, now = _shares(top, own + keys[i])
            mean = (past * over + now * values[i]) / (past * under + now)
            tl.store(y + place + token * width, mean, mask=held & (token < last))
            taken = _marks(valid + row * steps if VALID else valid, token, last, True, VALID)
            factor, enters, top = _factors(top, keys[i], rate, taken)
            over, under = factor * over + enters * values[i], factor * under + enters
    if last == steps:
        state = after + row * 3 * width + d
        tl.store(state, over, mask=held)
        tl.store(state + width, under, mask=held)
        tl.store(state + 2 * width, top, mask=held)


@triton.jit
def segments(k, v, decay, starts, valid, added, faded, steps, segment, width, STARTS: tl.constexpr,
             VALID: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """The state that each segment leaves of an empty one, and the logarithm of its factor on one that enters it."""
    row, rows, part = tl.program_id(1).to(tl.int64), tl.num_programs(1), tl.program_id(2)
    width = tl.cast(width, tl.int64)
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held, place = d < width, row * steps * width + d
    rate = tl.load(decay + d, mask=held, other=0.0)
    over, under = tl.full([BLOCK], 0.0, tl.float32), tl.full([BLOCK], 0.0, tl.float32)
    top, whole = tl.full([BLOCK], EMPTY, tl.float32), tl.full([BLOCK], 0.0, tl.float32)
    last = min((part + 1) * segment, steps)
    for first in range(part * segment, last, TILE):
        keys = _tile(k + place, first, last, width, held, TILE)
        values = _tile(v + place, first, last, width, held, TILE)
        for i in tl.static_range(TILE):
            token = first + i
            if STARTS:
                new = _marks(starts + row * steps, token, last, False, True)
                over, under, top = _emptied(over, under, top, new)
                whole = tl.where(new, NEVER, whole)
            taken = _marks(valid + row * steps if VALID else valid, token, last, True, VALID)
            factor, enters, top = _factors(top, keys[i], rate, taken)
            over, under = factor * over + enters * values[i], factor * under + enters
            whole = tl.where(taken, whole + rate, whole)
    state = added + (part * rows + row) * 3 * width + d
    tl.store(state, over, mask=held)
    tl.store(state + width, under, mask=held)
    tl.store(state + 2 * width, top, mask=held)
    tl.store(faded + (part * rows + row) * width + d, whole, mask=held)


@triton.jit
def chain(before, added, faded, width, parts, BLOCK: tl.constexpr):
    """Instead of the state that each segment leaves of an empty one, the state with which it begins."""
    row, rows = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    width = tl.cast(width, tl.int64)
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held, first = d < width, before + row * 3 * width + d
    over, under = tl.load(first, mask=held, other=0.0), tl.load(first + width, mask=held, other=0.0)
    top = tl.load(first + 2 * width, mask=held, other=0.0)
    for part in range(0, parts):
        state = added + (part * rows + row) * 3 * width + d
        own_over, own_under = tl.load(state, mask=held, other=0.0), tl.load(state + width, mask=held, other=0.0)
        own_top = tl.load(state + 2 * width, mask=held, other=0.0)
        remains = top + tl.load(faded + (part * rows + row) * width + d, mask=held, other=0.0)
        tl.store(state, over, mask=held)
        tl.store(state + width, under, mask=held)
        tl.store(state + 2 * width, top, mask=held)
        factor, enters = _shares(remains, own_top)
        over, under = factor * over + enters * own_over, factor * under + enters * own_under
        top = tl.maximum(remains, own_top)


@triton.jit
def backward(dy, entries, k, v, decay, bonus, kept, starts, valid, dk, dv, ddecay, dbonus, left, factors, steps,
             segment, width, SLOPES: tl.constexpr, STARTS: tl.constexpr, VALID: tl.constexpr, TILE: tl.constexpr,
             BLOCK: tl.constexpr):
    """All gradients, that of the sums before a segment as ``left``; without SLOPES only that, from zero after the
    segment, and the product of its a_t as ``factors``."""
    row, rows, part = tl.program_id(1).to(tl.int64), tl.num_programs(1), tl.program_id(2)
    width = tl.cast(width, tl.int64)
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held, place = d < width, row * steps * width + d
    rate, own = tl.load(decay + d, mask=held, other=0.0), tl.load(bonus + d, mask=held, other=0.0)
    later, below = tl.full([BLOCK], 0.0, tl.float32), tl.full([BLOCK], 0.0, tl.float32)
    whole, rate_slope = tl.full([BLOCK], 1.0, tl.float32), tl.full([BLOCK], 0.0, tl.float32)
    own_slope = tl.full([BLOCK], 0.0, tl.float32)
    state = (part * rows + row) * 2 * width + d
    if SLOPES:
        later = tl.load(entries + state, mask=held, other=0.0)
        below = tl.load(entries + state + width, mask=held, other=0.0)
    begin, last = part * segment, min((part + 1) * segment, steps)
    tiles = tl.cdiv(last - begin, TILE)
    for back in range(0, tiles):
        first = begin + (tiles - 1 - back) * TILE
        border = kept + (first // TILE * rows + row) * 3 * width + d
        over, under = tl.load(border, mask=held, other=0.0), tl.load(border + width, mask=held, other=0.0)
        top = tl.load(border + 2 * width, mask=held, other=0.0)
        keys = _tile(k + place, first, last, width, held, TILE)
        values = _tile(v + place, first, last, width, held, TILE)
        above = _tile(dy + place, first, last, width, held, TILE)
        overs, unders, tops = (), (), ()
        for i in tl.static_range(TILE):
            if STARTS:
                new = _marks(starts + row * steps, first + i, last, False, True)
                over, under, top = _emptied(over, under, top, new)
            overs, unders, tops = overs + (over,), unders + (under,), tops + (top,)
            taken = _marks(valid + row * steps if VALID else valid, first + i, last, True, VALID)
            factor, enters, top = _factors(top, keys[i], rate, taken)
            over, under = factor * over + enters * values[i], factor * under + enters
        for i in tl.static_range(TILE):
            token = first + (TILE - 1 - i)
            taken = _marks(valid + row * steps if VALID else valid, token, last, True, VALID)
            factor, enters, _ = _factors(tops[TILE - 1 - i], keys[TILE - 1 - i], rate, taken)
            past, now = _shares(tops[TILE - 1 - i], own + keys[TILE - 1 - i])
            share = past * unders[TILE - 1 - i] + now
            mean = (past * overs[TILE - 1 - i] + now * values[TILE - 1 - i]) / share
            slope = above[TILE - 1 - i] / share
            if SLOPES:
                direct, here = now * slope * (values[TILE - 1 - i] - mean), held & (token < last)
                entered = enters * (later * values[TILE - 1 - i] + below)
                tl.store(dk + place + token * width, direct + entered, mask=here)
                tl.store(dv + place + token * width, now * slope + enters * later, mask=here)
                fading = factor * (later * overs[TILE - 1 - i] + below * unders[TILE - 1 - i])
                rate_slope += tl.where(taken, fading, 0.0)
                own_slope += direct
            later = past * slope + factor * later
            below = factor * below - past * slope * mean
            whole *= factor
            if STARTS:
                new = _marks(starts + row * steps, token, last, False, True)
                later, below, whole = (tl.where(new, 0.0, later), tl.where(new, 0.0, below), tl.where(new, 0.0, whole))
    tl.store(left + state, later, mask=held)
    tl.store(left + state + width, below, mask=held)
    if SLOPES:
        tl.store(ddecay + (part * rows + row) * width + d, rate_slope, mask=held)
        tl.store(dbonus + (part * rows + row) * width + d, own_slope, mask=held)
    else:
        tl.store(factors + state, whole, mask=held)
        tl.store(factors + state + width, whole, mask=held)
