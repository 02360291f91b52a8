"""The selective scan, forward and backward: a program has some channels of one segment of a row.

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,   y_t = C_t h_t

The states of a program stay in registers. They are a tensor [NL,DL,NR,DR] of NL NR states of each of DL DR channels:
of the first two axes each thread has one entry, of the last two it has all. So sums over states or channels are sums in
registers first and take few exchanges between threads. Tokens are taken in tiles, so that all that is read for a
tile is under way at once.

Where rows and channels alone would leave most of the GPU idle, rows are cut into segments: `segments` computes what
each adds to a state and its decay, `chain` the states between them, and only then `forward` the outputs. The backward
pass does the same with gradients.

The backward pass takes chunks from the last to the first. From the state before a chunk, which the forward pass
stored, it computes the states before each tile, and then in each tile, again from the last, those of every token; with
G the gradient that later tokens give the state, g_t = C_t dy_t + G_t and G_{t-1} = exp(dt_t A) g_t.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _state_places(NR: tl.constexpr, NL: tl.constexpr):
    return tl.arange(0, NR)[None, None, :, None] * NL + tl.arange(0, NL)[:, None, None, None]


@triton.jit
def _channel_places(DR: tl.constexpr, DL: tl.constexpr):
    first = tl.program_id(0) * DR * DL
    return first + tl.arange(0, DL)[None, :, None, None] * DR + tl.arange(0, DR)[None, None, None, :]


@triton.jit
def _over_states(x):
    return tl.sum(tl.sum(x, 2, keep_dims=True), 0, keep_dims=True)


@triton.jit
def _over_channels(x):
    return tl.sum(tl.sum(x, 3, keep_dims=True), 1, keep_dims=True)


@triton.jit
def forward(u, dt, a, b, c, entries, starts, y, after, kept, steps, segment, channels, states, STARTS: tl.constexpr,
            KEEPS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, NR: tl.constexpr, NL: tl.constexpr,
            DR: tl.constexpr, DL: tl.constexpr):
    row, rows = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    channels, states = tl.cast(channels, tl.int64), tl.cast(states, tl.int64)
    n, d = _state_places(NR, NL), _channel_places(DR, DL)
    has_n, has_d = n < states, d < channels
    held, place = has_n & has_d, n * channels + d
    rate = tl.load(a + place, mask=held, other=0.0) * LOG2E
    part = tl.program_id(2)
    h = tl.load(entries + (part * rows + row) * states * channels + place, mask=held, other=0.0)
    last = min((part + 1) * segment, steps)
    u, dt, y = u + row * steps * channels, dt + row * steps * channels, y + row * steps * channels
    b, c = b + row * steps * states, c + row * steps * states
    if STARTS:
        starts += row * steps
    for chunk in range(part * segment // CHUNK, tl.cdiv(last, CHUNK)):
        if KEEPS:
            tl.store(kept + (chunk * rows + row) * states * channels + place, h, mask=held)
        for first in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, steps), TILE):
            outputs = ()
            for i in tl.static_range(TILE):
                token = first + i
                here_n, here_d = has_n & (token < steps), has_d & (token < steps)
                step = tl.load(dt + token * channels + d, mask=here_d, other=0.0)
                enters = step * tl.load(u + token * channels + d, mask=here_d, other=0.0)
                decay = tl.exp2(step * rate)
                if STARTS:
                    decay = tl.where(tl.load(starts + token, mask=token < steps, other=0) != 0, 0.0, decay)
                h = h * decay
                h += enters * tl.load(b + token * states + n, mask=here_n, other=0.0)
                outputs = outputs + (_over_states(h * tl.load(c + token * states + n, mask=here_n, other=0.0)),)
            for i in tl.static_range(TILE):
                tl.store(y + (first + i) * channels + d, outputs[i], mask=has_d & (first + i < steps))
    if last == steps:
        tl.store(after + row * states * channels + place, h, mask=held)


@triton.jit
def segments(x, y, dt, a, starts, added, decays, steps, segment, channels, states, STARTS: tl.constexpr,
             REVERSE: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, NR: tl.constexpr, NL: tl.constexpr,
             DR: tl.constexpr, DL: tl.constexpr):
    """The contribution of each segment to a state that passes it, and its decay: forward with u as ``x`` and B as
    ``y``; in reverse, of the gradient of a state, with dy and C."""
    row, rows, part = tl.program_id(1).to(tl.int64), tl.num_programs(1), tl.program_id(2)
    channels, states = tl.cast(channels, tl.int64), tl.cast(states, tl.int64)
    n, d = _state_places(NR, NL), _channel_places(DR, DL)
    has_n, has_d = n < states, d < channels
    held, place = has_n & has_d, n * channels + d
    rate = tl.load(a + place, mask=held, other=0.0) * LOG2E
    x, dt, y = x + row * steps * channels, dt + row * steps * channels, y + row * steps * states
    if STARTS:
        starts += row * steps
    h, whole = tl.full([NL, DL, NR, DR], 0.0, tl.float32), tl.full([NL, DL, NR, DR], 1.0, tl.float32)
    begin, last = part * segment, min((part + 1) * segment, steps)
    for tile in range(0, tl.cdiv(last - begin, TILE)):
        for i in tl.static_range(TILE):
            token = begin + tile * TILE + i
            if REVERSE:
                token = last - 1 - tile * TILE - i
            inside = (token >= begin) & (token < last)
            here_n, here_d = has_n & inside, has_d & inside
            step = tl.load(dt + token * channels + d, mask=here_d, other=0.0)
            decay = tl.exp2(step * rate)
            if STARTS:
                decay = tl.where(tl.load(starts + token, mask=inside, other=0) != 0, 0.0, decay)
            value = tl.load(x + token * channels + d, mask=here_d, other=0.0)
            mixes = tl.load(y + token * states + n, mask=here_n, other=0.0)
            if REVERSE:
                h = (h + value * mixes) * decay
            else:
                h = h * decay + step * value * mixes
            whole *= decay
    state = (part * rows + row) * states * channels + place
    tl.store(added + state, h, mask=held)
    tl.store(decays + state, whole, mask=held)


@triton.jit
def chain(first, added, decays, size, parts, REVERSE: tl.constexpr, BLOCK: tl.constexpr):
    """Instead of what each segment adds, the state with which it begins; in reverse, the gradient at its end."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(first + at, mask=at < size, other=0.0)
    for i in range(0, parts):
        part = i
        if REVERSE:
            part = parts - 1 - i
        place = tl.cast(part, tl.int64) * size + at
        new = tl.load(added + place, mask=at < size, other=0.0)
        decay = tl.load(decays + place, mask=at < size, other=0.0)
        tl.store(added + place, h, mask=at < size)
        h = h * decay + new


@triton.jit
def backward(dy, entries, u, dt, a, b, c, kept, starts, du, ddt, da, db, dc, dbefore, steps, segment, channels, states,
             STARTS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, NR: tl.constexpr, NL: tl.constexpr,
             DR: tl.constexpr, DL: tl.constexpr):
    TILES: tl.constexpr = CHUNK // TILE
    row, rows = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    channels, states = tl.cast(channels, tl.int64), tl.cast(states, tl.int64)
    n, d = _state_places(NR, NL), _channel_places(DR, DL)
    has_n, has_d = n < states, d < channels
    held, place = has_n & has_d, n * channels + d
    rate = tl.load(a + place, mask=held, other=0.0) * LOG2E
    part = tl.program_id(2)
    later = tl.load(entries + (part * rows + row) * states * channels + place, mask=held, other=0.0)
    u, dt, dy = u + row * steps * channels, dt + row * steps * channels, dy + row * steps * channels
    du, ddt = du + row * steps * channels, ddt + row * steps * channels
    b, c = b + row * steps * states, c + row * steps * states
    if STARTS:
        starts += row * steps
    piece = (row * tl.num_programs(0) + tl.program_id(0)) * steps * states
    db, dc = db + piece, dc + piece
    rate_slope = tl.zeros([NL, DL, NR, DR], tl.float32)
    tiles = tl.arange(0, TILES)[:, None, None, None, None]
    chunks = tl.cdiv(min((part + 1) * segment, steps), CHUNK)
    for back in range(0, chunks - part * segment // CHUNK):
        chunk = chunks - 1 - back
        h = tl.load(kept + (chunk * rows + row) * states * channels + place, mask=held, other=0.0)
        borders = tl.zeros([TILES, NL, DL, NR, DR], tl.float32)
        used = tl.cdiv(min(CHUNK, steps - chunk * CHUNK), TILE)
        for tile in range(0, used):
            first = chunk * CHUNK + tile * TILE
            borders = tl.where(tiles == tile, h[None], borders)
            for i in tl.static_range(TILE):
                token = first + i
                here_n, here_d = has_n & (token < steps), has_d & (token < steps)
                step = tl.load(dt + token * channels + d, mask=here_d, other=0.0)
                enters = step * tl.load(u + token * channels + d, mask=here_d, other=0.0)
                decay = tl.exp2(step * rate)
                if STARTS:
                    decay = tl.where(tl.load(starts + token, mask=token < steps, other=0) != 0, 0.0, decay)
                h = h * decay
                h += enters * tl.load(b + token * states + n, mask=here_n, other=0.0)
        for tile_back in range(0, used):
            tile = used - 1 - tile_back
            first = chunk * CHUNK + tile * TILE
            h = tl.sum(tl.where(tiles == tile, borders, 0.0), 0)
            decays, remains = (), ()  # exp(dt_t A), and what it leaves of the state before
            for i in tl.static_range(TILE):
                token = first + i
                here_n, here_d = has_n & (token < steps), has_d & (token < steps)
                step = tl.load(dt + token * channels + d, mask=here_d, other=0.0)
                enters = step * tl.load(u + token * channels + d, mask=here_d, other=0.0)
                decay = tl.exp2(step * rate)
                if STARTS:
                    decay = tl.where(tl.load(starts + token, mask=token < steps, other=0) != 0, 0.0, decay)
                h = h * decay
                decays, remains = decays + (decay,), remains + (h,)
                h += enters * tl.load(b + token * states + n, mask=here_n, other=0.0)
            for k in tl.static_range(TILE):
                token = first + (TILE - 1 - k)
                here_n, here_d = has_n & (token < steps), has_d & (token < steps)
                step = tl.load(dt + token * channels + d, mask=here_d, other=0.0)
                value = tl.load(u + token * channels + d, mask=here_d, other=0.0)
                above = tl.load(dy + token * channels + d, mask=here_d, other=0.0)
                writes = tl.load(b + token * states + n, mask=here_n, other=0.0)
                reads = tl.load(c + token * states + n, mask=here_n, other=0.0)
                slope = later + reads * above
                through = slope * remains[TILE - 1 - k]  # the gradient of dt A
                rate_slope += through * step
                entering = _over_states(slope * writes)  # the gradient of dt u
                leaving = _over_states(through * rate) * LN2
                tl.store(du + token * channels + d, entering * step, mask=here_d)
                tl.store(ddt + token * channels + d, leaving + entering * value, mask=here_d)
                tl.store(db + token * states + n, _over_channels(slope * (step * value)), mask=here_n)
                after = remains[TILE - 1 - k] + step * value * writes
                tl.store(dc + token * states + n, _over_channels(after * above), mask=here_n)
                later = slope * decays[TILE - 1 - k]
    tl.store(da + (part * rows + row) * states * channels + place, rate_slope, mask=held)
    if part == 0:
        tl.store(dbefore + row * states * channels + place, later, mask=held)
