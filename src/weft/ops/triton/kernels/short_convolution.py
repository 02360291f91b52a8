"""A depthwise causal convolution of a few taps, forward and backward: a program has a tile of tokens and channels.

    y_t = silu(b + sum_k w_k x_{t + k dilation})          x with its history before it

Each tap reads the tile again, a few tokens further, which lies in the cache then: from memory each number comes once.
`slopes` goes over the tiles of a segment of tokens, stores the gradient before the silu, and sums those of taps and
bias, one sum for each segment; `backward` computes the gradient of x from it. Sums are in float32.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tap(x, k: tl.constexpr, t, d, inside, ages, dilation, width, AGES: tl.constexpr, TAPS: tl.constexpr):
    """The numbers that tap ``k`` reads, zero before a token's document."""
    if AGES:
        inside = inside & (ages >= (TAPS - 1 - k) * dilation)
    return tl.load(x + (t + k * dilation) * width + d, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(-x * LOG2E))


@triton.jit
def forward(x, weight, bias, age, y, steps, width, dilation, age_stride, BIAS: tl.constexpr, AGES: tl.constexpr,
            SILU: tl.constexpr, TAPS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr):
    row, width = tl.program_id(2).to(tl.int64), tl.cast(width, tl.int64)
    d = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    t = (tl.program_id(1) * TILE + tl.arange(0, TILE))[:, None]
    held = d < width
    inside = held & (t < steps)
    x += row * (steps + (TAPS - 1) * dilation) * width
    ages = t
    if AGES:
        ages = tl.load(age + row * age_stride + t, mask=t < steps, other=0)
    found = tl.full([TILE, BLOCK], 0.0, tl.float32)
    if BIAS:
        found += tl.load(bias + d, mask=held, other=0.0).to(tl.float32)
    for k in tl.static_range(TAPS):
        scale = tl.load(weight + d * TAPS + k, mask=held, other=0.0).to(tl.float32)
        found += scale * _tap(x, k, t, d, inside, ages, dilation, width, AGES, TAPS)
    if SILU:
        found *= _sigmoid(found)
    tl.store(y + (row * steps + t) * width + d, found, mask=inside)


@triton.jit
def slopes(dy, x, weight, bias, age, before, sums, steps, segment, width, dilation, age_stride, BIAS: tl.constexpr,
           AGES: tl.constexpr, SILU: tl.constexpr, TAPS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr):
    row, width = tl.program_id(2).to(tl.int64), tl.cast(width, tl.int64)
    d = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    held = d < width
    x += row * (steps + (TAPS - 1) * dilation) * width
    scales, totals = (), ()
    for k in tl.static_range(TAPS):
        scales = scales + (tl.load(weight + d * TAPS + k, mask=held, other=0.0).to(tl.float32),)
        totals = totals + (tl.full([TILE, BLOCK], 0.0, tl.float32),)
    shift = tl.full([1, BLOCK], 0.0, tl.float32)
    if BIAS:
        shift = tl.load(bias + d, mask=held, other=0.0).to(tl.float32)
    whole = tl.full([TILE, BLOCK], 0.0, tl.float32)
    begin, last = tl.program_id(1) * segment, min((tl.program_id(1) + 1) * segment, steps)
    for first in range(begin, last, TILE):
        t = (first + tl.arange(0, TILE))[:, None]
        inside, ages = held & (t < last), t
        if AGES:
            ages = tl.load(age + row * age_stride + t, mask=t < last, other=0)
        slope = tl.load(dy + (row * steps + t) * width + d, mask=inside, other=0.0).to(tl.float32)
        if SILU:
            found = tl.full([TILE, BLOCK], 0.0, tl.float32) + shift
            for k in tl.static_range(TAPS):
                found += scales[k] * _tap(x, k, t, d, inside, ages, dilation, width, AGES, TAPS)
            share = _sigmoid(found)
            slope *= share * (1.0 + found * (1.0 - share))
            tl.store(before + (row * steps + t) * width + d, slope, mask=inside)
        summed = ()
        for k in tl.static_range(TAPS):
            summed = summed + (totals[k] + slope * _tap(x, k, t, d, inside, ages, dilation, width, AGES, TAPS),)
        totals = summed
        whole += slope
    sums += (row * tl.num_programs(1) + tl.program_id(1)) * (TAPS + 1) * width
    for k in tl.static_range(TAPS):
        tl.store(sums + k * width + d, tl.sum(totals[k], 0)[None, :], mask=held)
    tl.store(sums + TAPS * width + d, tl.sum(whole, 0)[None, :], mask=held)


@triton.jit
def backward(before, weight, age, dx, steps, width, dilation, age_stride, AGES: tl.constexpr, TAPS: tl.constexpr,
             TILE: tl.constexpr, BLOCK: tl.constexpr):
    row, width = tl.program_id(2).to(tl.int64), tl.cast(width, tl.int64)
    d = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    place = (tl.program_id(1) * TILE + tl.arange(0, TILE))[:, None]
    held, wide = d < width, steps + (TAPS - 1) * dilation
    found = tl.full([TILE, BLOCK], 0.0, tl.float32)
    for k in tl.static_range(TAPS):
        t = place - k * dilation
        inside = held & (t >= 0) & (t < steps)
        if AGES:
            ages = tl.load(age + row * age_stride + t, mask=(t >= 0) & (t < steps), other=0)
            inside = inside & (ages >= (TAPS - 1 - k) * dilation)
        scale = tl.load(weight + d * TAPS + k, mask=held, other=0.0).to(tl.float32)
        found += scale * tl.load(before + (row * steps + t) * width + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(dx + (row * wide + place) * width + d, found, mask=held & (place < wide))
