"""The selective scan, forward and backward: a program has some channels of one row, from the first token to the last.

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,   y_t = C_t h_t

The states of a program stay in registers. They are a tensor [NL,DL,NR,DR] of NL NR states of each of DL DR channels:
of the first two axes each thread has one entry, of the last two it has all. So sums over states or channels are sums in
registers first and take few exchanges between threads. Tokens are taken in tiles, so that all that is read for a
tile is under way at once.

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
def forward(u, dt, a, b, c, before, starts, y, after, kept, steps, channels, states, STARTS: tl.constexpr,
            KEEPS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, NR: tl.constexpr, NL: tl.constexpr,
            DR: tl.constexpr, DL: tl.constexpr):
    row, rows = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    channels, states = tl.cast(channels, tl.int64), tl.cast(states, tl.int64)
    n, d = _state_places(NR, NL), _channel_places(DR, DL)
    has_n, has_d = n < states, d < channels
    held, place = has_n & has_d, n * channels + d
    rate = tl.load(a + place, mask=held, other=0.0) * LOG2E
    h = tl.load(before + row * states * channels + place, mask=held, other=0.0)
    u, dt, y = u + row * steps * channels, dt + row * steps * channels, y + row * steps * channels
    b, c = b + row * steps * states, c + row * steps * states
    if STARTS:
        starts += row * steps
    for chunk in range(0, tl.cdiv(steps, CHUNK)):
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
    tl.store(after + row * states * channels + place, h, mask=held)


@triton.jit
def backward(dy, dafter, u, dt, a, b, c, kept, starts, du, ddt, da, db, dc, dbefore, steps, channels, states,
             STARTS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, NR: tl.constexpr, NL: tl.constexpr,
             DR: tl.constexpr, DL: tl.constexpr):
    TILES: tl.constexpr = CHUNK // TILE
    row, rows = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    channels, states = tl.cast(channels, tl.int64), tl.cast(states, tl.int64)
    n, d = _state_places(NR, NL), _channel_places(DR, DL)
    has_n, has_d = n < states, d < channels
    held, place = has_n & has_d, n * channels + d
    rate = tl.load(a + place, mask=held, other=0.0) * LOG2E
    later = tl.load(dafter + row * states * channels + place, mask=held, other=0.0)
    u, dt, dy = u + row * steps * channels, dt + row * steps * channels, dy + row * steps * channels
    du, ddt = du + row * steps * channels, ddt + row * steps * channels
    b, c = b + row * steps * states, c + row * steps * states
    if STARTS:
        starts += row * steps
    piece = (row * tl.num_programs(0) + tl.program_id(0)) * steps * states
    db, dc = db + piece, dc + piece
    rate_slope = tl.zeros([NL, DL, NR, DR], tl.float32)
    tiles = tl.arange(0, TILES)[:, None, None, None, None]
    chunks = tl.cdiv(steps, CHUNK)
    for back in range(0, chunks):
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
    tl.store(da + row * states * channels + place, rate_slope, mask=held)
    tl.store(dbefore + row * states * channels + place, later, mask=held)
