"""The delta rule in chunks of tokens, forward, for decays of a head and token (BY = 1) or of a feature (BY = 2), or
none.

    S_t = (diag(exp(g_t)) + b_t a_t^T) S_{t-1} + k_t v_t^T,   o_t = q_t S_t

The mathematics is that of `weft.ops.delta_rule_chunks`. `solve` takes all chunks at once: T = (I - AB)^-1, W = T A and
Y = T AK V. `states` goes from chunk to chunk: it stores the state before each and, in place of Y, U = W S + Y, which is
what the tokens read. `outputs` takes all chunks at once again. The backward pass begins with `solve_backward`, whose W
and Y belong to the gradients of what is read; `states` goes back over the chunks with them, as the same recurrence in
the other direction. `delta_rule_slopes` then computes the gradients of all chunks at once.

Decays enter as exponentials of sums of logarithms over the tokens between two others, never of differences of sums
from the chunk's first token on: a decay of zero (minus infinity, here `NONE`) is exact, and so is what comes after it.
Decays of features do not factor out of a product of vectors unless both are taken to a border between them. For tokens
in different runs of `NEAR` that is the border between the halves of a block of 32 or 64 tokens (`halves_of`); products
of tokens in one run come from `delta_rule_near`, which takes them one distance after the other.

A tensor of a chunk is [token,feature], and every product has sides of 16 at least: zeros fill tokens up to whole chunks
and features up to whole tiles.
"""

import triton
import triton.language as tl

NONE = tl.constexpr(-1e30)
NEAR = tl.constexpr(16)
"""Tokens of a run."""


@triton.jit
def tile_of(x, t, e, steps, stride, size):
    """Entries of a vector of each token, zero beyond the last token and feature."""
    return tl.load(x + t * stride + e, mask=(t < steps) & (e < size), other=0.0)


@triton.jit
def logs_of(log, t, e, inside, steps, stride, size, BY: tl.constexpr):
    """Logarithms of decays, [token,feature] or [token,1], zero for tokens that are not inside."""
    there = inside & (t >= 0) & (t < steps)
    if BY == 1:
        return tl.maximum(tl.load(log + t * stride, mask=there, other=0.0), NONE)
    else:
        return tl.maximum(tl.load(log + t * stride + e, mask=there & (e < size), other=0.0), NONE)


@triton.jit
def sums(x, RUN: tl.constexpr, CHUNK: tl.constexpr, WIDE: tl.constexpr, REVERSE: tl.constexpr):
    """Sums up to each token, or from it on, inside runs of so many tokens."""
    runs = tl.reshape(x, [CHUNK // RUN, RUN, WIDE])
    return tl.reshape(tl.cumsum(runs, 1, reverse=REVERSE), [CHUNK, WIDE])


@triton.jit
def decays_before(log, first, e, steps, stride, size, OWN: tl.constexpr, RUN: tl.constexpr, BY: tl.constexpr,
                  CHUNK: tl.constexpr, BE: tl.constexpr):
    """The decay from the beginning of a run of so many tokens up to each token, its own included or not."""
    i = tl.arange(0, CHUNK)[:, None]
    if BY == 0:
        return tl.full([CHUNK, 1], 1.0, tl.float32)
    else:
        inside = (i >= 0) if OWN else (i % RUN > 0)
        logs = logs_of(log, first + i - (0 if OWN else 1), e, inside, steps, stride, size, BY)
        return tl.exp(sums(logs, RUN, CHUNK, 1 if BY == 1 else BE, False))


@triton.jit
def decays_after(log, first, e, steps, stride, size, RUN: tl.constexpr, BY: tl.constexpr, CHUNK: tl.constexpr,
                 BE: tl.constexpr):
    """The decay after each token up to the end of its run of so many tokens."""
    i = tl.arange(0, CHUNK)[:, None]
    if BY == 0:
        return tl.full([CHUNK, 1], 1.0, tl.float32)
    else:
        logs = logs_of(log, first + i + 1, e, (i + 1) % RUN > 0, steps, stride, size, BY)
        return tl.exp(sums(logs, RUN, CHUNK, 1 if BY == 1 else BE, True))


@triton.jit
def pairs_of(log, first, steps, stride, OWN: tl.constexpr, BY: tl.constexpr, CHUNK: tl.constexpr):
    """The decay [reader,writer] of a head from each token to a later one, zero for earlier ones; with OWN that of the
    later token is included, and a token reads what it writes."""
    i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    late: tl.constexpr = 0 if OWN else 1
    weights = (i >= j + late).to(tl.float32)
    if BY == 1:
        logs = logs_of(log, first + i - late, i, i >= late, steps, stride, 1, 1)
        weights *= tl.exp(tl.cumsum(tl.where(i > j + late, logs, 0.0), 0))
    return weights


@triton.jit
def halves_of(RUN: tl.constexpr, CHUNK: tl.constexpr):
    """Where the reader lies in the later and the writer in the earlier half of one block of 2 RUN tokens."""
    i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    return (i // RUN == j // RUN + 1) & (j // RUN % 2 == 0)


@triton.jit
def scores_of(x, y, near, log, first, steps, heads, stride, keys: tl.constexpr, WHICH: tl.constexpr, BY: tl.constexpr,
              PRECISION: tl.constexpr, CHUNK: tl.constexpr, BE: tl.constexpr, LEVELS: tl.constexpr):
    """Products of readers and writers of a chunk, times the decays between them: WHICH is 0 for QB, 1 for QK, 2 for AB
    and 3 for AK."""
    i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    t = first + i
    found = tl.full([CHUNK, CHUNK], 0.0, tl.float32)
    for start in range(0, keys, BE):
        e = start + tl.arange(0, BE)[None, :]
        reader, writer = tile_of(x, t, e, steps, heads * keys, keys), tile_of(y, t, e, steps, heads * keys, keys)
        if BY == 2:
            for level in tl.static_range(LEVELS):
                late = reader * decays_before(log, first, e, steps, stride, keys, WHICH < 2, NEAR << level, 2, CHUNK,
                                              BE)
                early = writer * decays_after(log, first, e, steps, stride, keys, NEAR << level, 2, CHUNK, BE)
                apart = tl.dot(late, early.T, input_precision=PRECISION)
                found += tl.where(halves_of(NEAR << level, CHUNK), apart, 0.0)
        else:
            found += tl.dot(reader, writer.T, input_precision=PRECISION)
    if BY == 2:
        close = (t < steps) & (i // NEAR == j // NEAR) & (i >= j)
        found += tl.load(near + t * (heads * 4 * NEAR) + WHICH * NEAR + i - j, mask=close, other=0.0)
    else:
        found *= pairs_of(log, first, steps, stride, WHICH < 2, BY, CHUNK)
    return found


@triton.jit
def inverse_of(system, PRECISION: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr):
    """(I - AB)^-1 by substitution, in all runs of 16 tokens at once, and then by blocks of twice their size."""
    BLOCKS: tl.constexpr = CHUNK // NEAR
    block, c, r = tl.arange(0, BLOCKS), tl.arange(0, NEAR)[None, None, :], tl.arange(0, NEAR)[None, :, None]
    same = block[:, None, None, None] == block[None, None, :, None]
    own = tl.sum(tl.where(same, tl.reshape(system, [BLOCKS, NEAR, BLOCKS, NEAR]), 0.0), 2)
    found = tl.full([BLOCKS, NEAR, NEAR], 0.0, tl.float32) + (r == c).to(tl.float32)
    for i in range(0, NEAR - 1):
        column = tl.sum(tl.where(c == i, own, 0.0), 2, keep_dims=True)
        found += column * tl.sum(tl.where(r == i, found, 0.0), 1, keep_dims=True)
    whole = tl.reshape(tl.where(same, found[:, :, None, :], 0.0), [CHUNK, CHUNK])
    for level in tl.static_range(LEVELS):
        below = tl.where(halves_of(NEAR << level, CHUNK), system, 0.0)
        reached = tl.dot(whole, below, input_precision=PRECISION)
        whole += tl.dot(reached, whole, input_precision=PRECISION)
    return whole


@triton.jit
def solve(k, v, a, b, log, near, w, y, inverse, over, late, early, steps, heads, row_stride, stride,
          keys: tl.constexpr, values: tl.constexpr, BY: tl.constexpr, KEEPS: tl.constexpr, PRECISION: tl.constexpr,
          CHUNK: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr, LEVELS: tl.constexpr):
    """W, Y and the inverse of a chunk; its decays ``over`` all tokens; for decays of a head those after each token in
    ``late``, and for decays of features b and k with these in ``late`` and ``early``."""
    chunks = tl.cdiv(steps, CHUNK)
    chunk, head = tl.program_id(0) % chunks, tl.program_id(0) // chunks % heads
    row, first = tl.program_id(0).to(tl.int64) // chunks // heads, chunk * CHUNK
    i = tl.arange(0, CHUNK)[:, None]
    t, by_key, by_value = first + i, (row * steps * heads + head) * keys, (row * steps * heads + head) * values
    k, a, b, w, v, y = k + by_key, a + by_key, b + by_key, w + by_key, v + by_value, y + by_value
    if BY > 0:
        log += row * row_stride + head * (keys if BY == 2 else 1)
    if BY == 2:
        near, late, early = near + (row * steps * heads + head) * 4 * NEAR, late + by_key, early + by_key
    system = scores_of(a, b, near, log, first, steps, heads, stride, keys, 2, BY, PRECISION, CHUNK, BE, LEVELS)
    solved = inverse_of(system, "tf32x3", CHUNK, LEVELS)
    if KEEPS:
        square = tl.program_id(0).to(tl.int64) * CHUNK * CHUNK
        tl.store(inverse + square + i * CHUNK + tl.arange(0, CHUNK)[None, :], solved)
    for start in range(0, keys, BE):
        e = start + tl.arange(0, BE)[None, :]
        inside = (t < steps) & (e < keys)
        read = tile_of(a, t, e, steps, heads * keys, keys)
        read *= decays_before(log, first, e, steps, stride, keys, False, CHUNK, BY, CHUNK, BE)
        tl.store(w + t * (heads * keys) + e, tl.dot(solved, read, input_precision=PRECISION), mask=inside)
        if BY == 2:
            after = decays_after(log, first, e, steps, stride, keys, CHUNK, 2, CHUNK, BE)
            place = t * (heads * keys) + e
            tl.store(late + place, after * tile_of(b, t, e, steps, heads * keys, keys), mask=inside)
            tl.store(early + place, after * tile_of(k, t, e, steps, heads * keys, keys), mask=inside)
            logs = logs_of(log, t, e, i >= 0, steps, stride, keys, 2)
            tl.store(over + tl.program_id(0) * keys + e, tl.exp(tl.sum(logs, 0))[None, :], mask=e < keys)
    if BY == 1:
        after = decays_after(log, first, i, steps, stride, 1, CHUNK, 1, CHUNK, 1)
        tl.store(late + (row * steps + t) * heads + head, after, mask=t < steps)
        logs = logs_of(log, t, i, i >= 0, steps, stride, 1, 1)
        tl.store(over + tl.program_id(0), tl.exp(tl.sum(tl.sum(logs, 1), 0)))
    read = scores_of(a, k, near, log, first, steps, heads, stride, keys, 3, BY, PRECISION, CHUNK, BE, LEVELS)
    read = tl.dot(solved, read, input_precision=PRECISION)
    for column in range(0, values, BF):
        f = column + tl.arange(0, BF)[None, :]
        value = tile_of(v, t, f, steps, heads * values, values)
        tl.store(y + t * (heads * values) + f, tl.dot(read, value, input_precision=PRECISION),
                 mask=(t < steps) & (f < values))


@triton.jit
def states(w, y, x, z, v, of_x, of_z, over, before, kept, after, steps, heads, keys: tl.constexpr,
           values: tl.constexpr, REVERSE: tl.constexpr, BY: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
           WIDE: tl.constexpr, BF: tl.constexpr):
    """From chunk to chunk, U = W S + Y in place of ``y`` and then S times the chunk's decays, + X^T U + Z^T V; for
    decays of a head the rows of X and Z are multiplied by ``of_x`` and ``of_z``."""
    row, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    chunks, size, i = tl.cdiv(steps, CHUNK), keys * values, tl.arange(0, CHUNK)[:, None]
    e, f = tl.arange(0, WIDE)[None, :], tl.program_id(1) * BF + tl.arange(0, BF)[None, :]
    column = tl.arange(0, WIDE)[:, None]
    place, held = column * values + f, (column < keys) & (f < values)
    by_key, by_value = (row * steps * heads + head) * keys, (row * steps * heads + head) * values
    w, x, z, y, v = w + by_key, x + by_key, z + by_key, y + by_value, v + by_value
    state = tl.program_id(0).to(tl.int64)
    s = tl.load(before + state * size + place, mask=held, other=0.0)
    for turn in range(0, chunks):
        chunk = chunks - 1 - turn if REVERSE else turn
        t = chunk * CHUNK + i
        tl.store(kept + (state * chunks + chunk) * size + place, s, mask=held)
        read = tile_of(y, t, f, steps, heads * values, values)
        read += tl.dot(tile_of(w, t, e, steps, heads * keys, keys), s, input_precision=PRECISION)
        tl.store(y + t * (heads * values) + f, read, mask=(t < steps) & (f < values))
        value = tile_of(v, t, f, steps, heads * values, values)
        if BY == 1:
            read *= tl.load(of_x + (row * steps + t) * heads + head, mask=t < steps, other=0.0)
            value *= tl.load(of_z + (row * steps + t) * heads + head, mask=t < steps, other=0.0)
            s *= tl.load(over + state * chunks + chunk)
        if BY == 2:
            s *= tl.load(over + (state * chunks + chunk) * keys + column, mask=column < keys, other=0.0)
        s += tl.dot(tile_of(x, t, e, steps, heads * keys, keys).T, read, input_precision=PRECISION)
        s += tl.dot(tile_of(z, t, e, steps, heads * keys, keys).T, value, input_precision=PRECISION)
    tl.store(after + state * size + place, s, mask=held)


@triton.jit
def outputs(q, k, v, b, u, log, near, kept, o, steps, heads, row_stride, stride, keys: tl.constexpr,
            values: tl.constexpr, BY: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr, BE: tl.constexpr,
            BF: tl.constexpr, LEVELS: tl.constexpr):
    """Q S + QB U + QK V."""
    chunks = tl.cdiv(steps, CHUNK)
    chunk, head = tl.program_id(0) % chunks, tl.program_id(0) // chunks % heads
    row, first = tl.program_id(0).to(tl.int64) // chunks // heads, chunk * CHUNK
    t, f = first + tl.arange(0, CHUNK)[:, None], tl.program_id(1) * BF + tl.arange(0, BF)[None, :]
    by_key, by_value = (row * steps * heads + head) * keys, (row * steps * heads + head) * values
    q, k, b, v, u, o = q + by_key, k + by_key, b + by_key, v + by_value, u + by_value, o + by_value
    kept += tl.program_id(0).to(tl.int64) * (keys * values)
    if BY > 0:
        log += row * row_stride + head * (keys if BY == 2 else 1)
    if BY == 2:
        near += (row * steps * heads + head) * 4 * NEAR
    found = tl.full([CHUNK, BF], 0.0, tl.float32)
    for start in range(0, keys, BE):
        e, column = start + tl.arange(0, BE)[None, :], start + tl.arange(0, BE)[:, None]
        query = tile_of(q, t, e, steps, heads * keys, keys)
        query *= decays_before(log, first, e, steps, stride, keys, True, CHUNK, BY, CHUNK, BE)
        state = tl.load(kept + column * values + f, mask=(column < keys) & (f < values), other=0.0)
        found += tl.dot(query, state, input_precision=PRECISION)
    scores = scores_of(q, b, near, log, first, steps, heads, stride, keys, 0, BY, PRECISION, CHUNK, BE, LEVELS)
    found += tl.dot(scores, tile_of(u, t, f, steps, heads * values, values), input_precision=PRECISION)
    scores = scores_of(q, k, near, log, first, steps, heads, stride, keys, 1, BY, PRECISION, CHUNK, BE, LEVELS)
    found += tl.dot(scores, tile_of(v, t, f, steps, heads * values, values), input_precision=PRECISION)
    tl.store(o + t * (heads * values) + f, found, mask=(t < steps) & (f < values))
