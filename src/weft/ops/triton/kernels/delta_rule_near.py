"""The delta rule between tokens of one run of 16, for decays that differ between the features of a key.

No border lies between such tokens, so their products are sums of three factors each, a reader, a writer and the decay
between them: one distance of tokens after the other, while the decay over that distance is carried along as a product.
What is stored for a token [4,16] is its scores with the writers 0 to 15 tokens before it: QB, QK, AB and AK.
"""

import triton
import triton.language as tl

from weft.ops.triton.kernels.delta_rule import NEAR, sums


@triton.jit
def scores(q, k, a, b, log, near, steps, heads, row_stride, stride, keys: tl.constexpr, CHUNK: tl.constexpr,
           BE: tl.constexpr):
    chunks, wide = tl.cdiv(steps, CHUNK), heads * keys
    chunk, head = tl.program_id(0) % chunks, tl.program_id(0) // chunks % heads
    row, i = tl.program_id(0).to(tl.int64) // chunks // heads, tl.arange(0, CHUNK)[:, None]
    t, by_key, column = chunk * CHUNK + i, (row * steps * heads + head) * keys, tl.arange(0, NEAR)[None, :]
    q, k, a, b, log = q + by_key, k + by_key, a + by_key, b + by_key, log + row * row_stride + head * keys
    qb, qk = tl.full([CHUNK, NEAR], 0.0, tl.float32), tl.full([CHUNK, NEAR], 0.0, tl.float32)
    ab, ak = tl.full([CHUNK, NEAR], 0.0, tl.float32), tl.full([CHUNK, NEAR], 0.0, tl.float32)
    for start in range(0, keys, BE):
        e = start + tl.arange(0, BE)[None, :]
        inside, place, at = (t < steps) & (e < keys), t * wide + e, t * stride + e
        query, read = tl.load(q + place, mask=inside, other=0.0), tl.load(a + place, mask=inside, other=0.0)
        write, key = tl.load(b + place, mask=inside, other=0.0), tl.load(k + place, mask=inside, other=0.0)
        qb += tl.where(column == 0, tl.sum(query * write, 1)[:, None], 0.0)
        qk += tl.where(column == 0, tl.sum(query * key, 1)[:, None], 0.0)
        query *= tl.exp(tl.load(log + at, mask=inside, other=0.0))
        decay, left = tl.full([CHUNK, BE], 1.0, tl.float32), tl.where(inside, i % NEAR, 0)
        for d in range(1, min(NEAR, steps)):
            there, own = left >= d, column == d
            write = decay * tl.load(b + (place - d * wide), mask=there, other=0.0)
            key = decay * tl.load(k + (place - d * wide), mask=there, other=0.0)
            qb += tl.where(own, tl.sum(query * write, 1)[:, None], 0.0)
            qk += tl.where(own, tl.sum(query * key, 1)[:, None], 0.0)
            ab += tl.where(own, tl.sum(read * write, 1)[:, None], 0.0)
            ak += tl.where(own, tl.sum(read * key, 1)[:, None], 0.0)
            decay *= tl.exp(tl.load(log + (at - d * stride), mask=there, other=0.0))
    place = near + ((row * steps + t) * heads + head) * 4 * NEAR + column
    tl.store(place, qb, mask=t < steps)
    tl.store(place + NEAR, qk, mask=t < steps)
    tl.store(place + 2 * NEAR, ab, mask=t < steps)
    tl.store(place + 3 * NEAR, ak, mask=t < steps)


@triton.jit
def reader_slopes(q, k, a, b, log, near, dq, da, dlog, steps, heads, row_stride, stride, keys: tl.constexpr,
                  CHUNK: tl.constexpr, BE: tl.constexpr):
    """Adds to dQ, dA and the slopes of decays what comes by scores with earlier tokens of the run, whose slopes are in
    ``near``."""
    chunks, wide, score_wide = tl.cdiv(steps, CHUNK), heads * keys, heads * 4 * NEAR
    chunk, head = tl.program_id(0) % chunks, tl.program_id(0) // chunks % heads
    row, i = tl.program_id(0).to(tl.int64) // chunks // heads, tl.arange(0, CHUNK)[:, None]
    t, e = chunk * CHUNK + i, tl.program_id(1) * BE + tl.arange(0, BE)[None, :]
    by_key, inside = (row * steps * heads + head) * keys, (t < steps) & (e < keys)
    place, at, held = by_key + t * wide + e, row * row_stride + head * keys + t * stride + e, t < steps
    score = near + (row * steps * heads + head) * 4 * NEAR + t * score_wide
    asked, taken = tl.full([CHUNK, BE], 0.0, tl.float32), tl.full([CHUNK, BE], 0.0, tl.float32)
    decay, left = tl.full([CHUNK, BE], 1.0, tl.float32), tl.where(inside, i % NEAR, 0)
    for d in range(1, min(NEAR, steps)):
        there, some = left >= d, held & (i % NEAR >= d)
        write = decay * tl.load(b + (place - d * wide), mask=there, other=0.0)
        key = decay * tl.load(k + (place - d * wide), mask=there, other=0.0)
        asked += tl.load(score + d, mask=some, other=0.0) * write
        asked += tl.load(score + (d + NEAR), mask=some, other=0.0) * key
        taken += tl.load(score + (d + 2 * NEAR), mask=some, other=0.0) * write
        taken += tl.load(score + (d + 3 * NEAR), mask=some, other=0.0) * key
        decay *= tl.exp(tl.load(log + (at - d * stride), mask=there, other=0.0))
    asked *= tl.exp(tl.load(log + at, mask=inside, other=0.0))
    own = tl.load(a + place, mask=inside, other=0.0) * taken
    reading = tl.load(q + place, mask=inside, other=0.0) * asked + own
    found = sums(reading, NEAR, CHUNK, BE, True) - own
    asked += tl.load(score, mask=held, other=0.0) * tl.load(b + place, mask=inside, other=0.0)
    asked += tl.load(score + NEAR, mask=held, other=0.0) * tl.load(k + place, mask=inside, other=0.0)
    tl.store(dq + place, tl.load(dq + place, mask=inside, other=0.0) + asked, mask=inside)
    tl.store(da + place, tl.load(da + place, mask=inside, other=0.0) + taken, mask=inside)
    tl.store(dlog + place, tl.load(dlog + place, mask=inside, other=0.0) + found, mask=inside)


@triton.jit
def writer_slopes(q, k, a, b, log, near, dk, db, dlog, steps, heads, row_stride, stride, keys: tl.constexpr,
                  CHUNK: tl.constexpr, BE: tl.constexpr):
    """Adds to dK, dB and the slopes of decays what comes by scores with later tokens of the run."""
    chunks, wide, score_wide = tl.cdiv(steps, CHUNK), heads * keys, heads * 4 * NEAR
    chunk, head = tl.program_id(0) % chunks, tl.program_id(0) // chunks % heads
    row, i = tl.program_id(0).to(tl.int64) // chunks // heads, tl.arange(0, CHUNK)[:, None]
    t, e = chunk * CHUNK + i, tl.program_id(1) * BE + tl.arange(0, BE)[None, :]
    by_key, inside = (row * steps * heads + head) * keys, (t < steps) & (e < keys)
    place, at = by_key + t * wide + e, row * row_stride + head * keys + t * stride + e
    score = near + (row * steps * heads + head) * 4 * NEAR + t * score_wide
    wrote, stored = tl.full([CHUNK, BE], 0.0, tl.float32), tl.full([CHUNK, BE], 0.0, tl.float32)
    decay, right = tl.full([CHUNK, BE], 1.0, tl.float32), tl.where(t < steps, i % NEAR, NEAR)
    for d in range(1, min(NEAR, steps)):
        some, later = (right + d < NEAR) & (t + d < steps), score + d * (score_wide + 1)
        there = some & (e < keys)
        over = tl.exp(tl.load(log + (at + d * stride), mask=there, other=0.0))
        query = decay * over * tl.load(q + (place + d * wide), mask=there, other=0.0)
        read = decay * tl.load(a + (place + d * wide), mask=there, other=0.0)
        wrote += tl.load(later, mask=some, other=0.0) * query
        wrote += tl.load(later + 2 * NEAR, mask=some, other=0.0) * read
        stored += tl.load(later + NEAR, mask=some, other=0.0) * query
        stored += tl.load(later + 3 * NEAR, mask=some, other=0.0) * read
        decay *= over
    writing = tl.load(b + place, mask=inside, other=0.0) * wrote
    writing += tl.load(k + place, mask=inside, other=0.0) * stored
    found = tl.load(dlog + place, mask=inside, other=0.0) - sums(writing, NEAR, CHUNK, BE, True)
    tl.store(dlog + place, found, mask=inside)
    query, held = tl.load(q + place, mask=inside, other=0.0), t < steps
    wrote += tl.load(score, mask=held, other=0.0) * query
    stored += tl.load(score + NEAR, mask=held, other=0.0) * query
    tl.store(db + place, tl.load(db + place, mask=inside, other=0.0) + wrote, mask=inside)
    tl.store(dk + place, tl.load(dk + place, mask=inside, other=0.0) + stored, mask=inside)
