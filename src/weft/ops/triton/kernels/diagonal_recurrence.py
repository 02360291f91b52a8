"""A recurrence of features that do not mix, forward and backward: a program has some features of one segment of a row.

    h_t = a_t h_{t-1} + x_t

A thread has one feature, whose state stays in a register. Tokens are taken in tiles: the numbers of the next tile are
being read while the states of one are computed, so that few programs keep the memory busy. Each number is read once and
written once.

Where rows and features alone would leave most of the GPU idle, rows are cut into segments: `segments` computes what
each adds to a state and its decay, `chain` of the selective scan computes the states between them, and only then
`forward` computes the states of all tokens. The backward pass goes from the last token to the first: s_t, the gradient
of h_t and of x_t, is dh_t + a_{t+1} s_{t+1}, and a_t s_t h_{t-1} is the gradient of the logarithm of a_t.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tile(x, first, sign: tl.constexpr, begin, last, width, held, TILE: tl.constexpr):
    """The numbers of a tile's tokens, zero outside of the segment; with a ``sign`` of -1 they go back in time."""
    found = ()
    for i in tl.static_range(TILE):
        token = first + sign * i
        inside = held & (token >= begin) & (token < last)
        found = found + (tl.load(x + token * width, mask=inside, other=0.0),)
    return found


@triton.jit
def forward(x, logs, entries, h, steps, segment, width, TILE: tl.constexpr, BLOCK: tl.constexpr):
    row, rows, part = tl.program_id(1).to(tl.int64), tl.num_programs(1), tl.program_id(2)
    width = tl.cast(width, tl.int64)
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held, place = d < width, row * steps * width + d
    state = tl.load(entries + (part * rows + row) * width + d, mask=held, other=0.0)
    begin, last = part * segment, min((part + 1) * segment, steps)
    decays = _tile(logs + place, begin, 1, begin, last, width, held, TILE)
    added = _tile(x + place, begin, 1, begin, last, width, held, TILE)
    for first in range(begin, last, TILE):
        next_decays = _tile(logs + place, first + TILE, 1, begin, last, width, held, TILE)
        next_added = _tile(x + place, first + TILE, 1, begin, last, width, held, TILE)
        for i in tl.static_range(TILE):
            state = tl.exp2(decays[i] * LOG2E) * state + added[i]
            tl.store(h + place + (first + i) * width, state, mask=held & (first + i < last))
        decays, added = next_decays, next_added


@triton.jit
def segments(x, logs, added, decays, steps, segment, width, REVERSE: tl.constexpr, TILE: tl.constexpr,
             BLOCK: tl.constexpr):
    """The contribution of each segment to a state that passes it, and its decay; in reverse, of the gradient of a
    state, with dh as ``x``."""
    row, rows, part = tl.program_id(1).to(tl.int64), tl.num_programs(1), tl.program_id(2)
    width = tl.cast(width, tl.int64)
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held, place = d < width, row * steps * width + d
    begin, last = part * segment, min((part + 1) * segment, steps)
    state, whole = tl.full([BLOCK], 0.0, tl.float32), tl.full([BLOCK], 1.0, tl.float32)
    SIGN: tl.constexpr = -1 if REVERSE else 1
    for tile in range(0, tl.cdiv(last - begin, TILE)):
        first = begin + tile * TILE
        if REVERSE:
            first = last - 1 - tile * TILE
        logarithms = _tile(logs + place, first, SIGN, begin, last, width, held, TILE)
        entering = _tile(x + place, first, SIGN, begin, last, width, held, TILE)
        for i in tl.static_range(TILE):
            decay = tl.exp2(logarithms[i] * LOG2E)
            if REVERSE:
                state = decay * (state + entering[i])
            else:
                state = decay * state + entering[i]
            whole *= decay
    tl.store(added + (part * rows + row) * width + d, state, mask=held)
    tl.store(decays + (part * rows + row) * width + d, whole, mask=held)


@triton.jit
def backward(dh, entries, logs, before, h, dx, dlogs, dbefore, steps, segment, width, TILE: tl.constexpr,
             BLOCK: tl.constexpr):
    row, rows, part = tl.program_id(1).to(tl.int64), tl.num_programs(1), tl.program_id(2)
    width = tl.cast(width, tl.int64)
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held, place = d < width, row * steps * width + d
    passed = tl.load(entries + (part * rows + row) * width + d, mask=held, other=0.0)
    initial = tl.load(before + row * width + d, mask=held, other=0.0)
    begin, last = part * segment, min((part + 1) * segment, steps)
    earlier = max(begin, 1)  # the states before tokens from here on are in h
    above = _tile(dh + place, last - 1, -1, begin, last, width, held, TILE)
    decays = _tile(logs + place, last - 1, -1, begin, last, width, held, TILE)
    states = _tile(h + place - width, last - 1, -1, earlier, last, width, held, TILE)
    for tile in range(0, tl.cdiv(last - begin, TILE)):
        first = last - 1 - tile * TILE
        next_above = _tile(dh + place, first - TILE, -1, begin, last, width, held, TILE)
        next_decays = _tile(logs + place, first - TILE, -1, begin, last, width, held, TILE)
        next_states = _tile(h + place - width, first - TILE, -1, earlier, last, width, held, TILE)
        for i in tl.static_range(TILE):
            token = first - i
            inside = held & (token >= begin)
            slope = above[i] + passed
            tl.store(dx + place + token * width, slope, mask=inside)
            passed = tl.exp2(decays[i] * LOG2E) * slope
            met = tl.where(token == 0, initial, states[i])
            tl.store(dlogs + place + token * width, passed * met, mask=inside)
        above, decays, states = next_above, next_decays, next_states
    if part == 0:
        tl.store(dbefore + row * width + d, passed, mask=held)
