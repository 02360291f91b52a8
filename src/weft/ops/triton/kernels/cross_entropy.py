"""The cross-entropy of rows of logits, and the gradient of the logits written over them.

    loss = (1 - s) (log Z - z_y) + s (log Z - mean(z)) + c (log Z)^2
    dloss/dz = p (1 + 2 c log Z) - (1 - s) 1_y - s / V

One program reads a row twice: for the largest logit and the sums, and for the gradient, when it lies in the cache. The
arithmetic is in float32.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3e38)


@triton.jit
def _capped(z, cap, CAPPED: tl.constexpr):
    """c tanh(z / c), by a sigmoid, which Triton has for every target."""
    if CAPPED:
        z = cap * (2 * tl.sigmoid(2 * z / cap) - 1)
    return z


@triton.jit
def rows(logits, targets, scored, nats, losses, size, cap, smoothing, z_loss, CAPPED: tl.constexpr,
         SMOOTHED: tl.constexpr, SLOPES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * size
    target, counts = tl.load(targets + row), tl.load(scored + row).to(tl.float32)
    place = tl.arange(0, BLOCK)
    # One running maximum and sum for each place of a block: they meet once, after the last block.
    largest, sums = tl.full([BLOCK], LOWEST, tl.float32), tl.zeros([BLOCK], tl.float32)
    total, own = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for first in range(0, size, BLOCK):
        inside = first + place < size
        z = _capped(tl.load(logits + first + place, mask=inside, other=0.0).to(tl.float32), cap, CAPPED)
        if SMOOTHED:
            total += tl.where(inside, z, 0.0)
        own += tl.where(first + place == target, z, 0.0)
        z = tl.where(inside, z, -float("inf"))
        more = tl.maximum(largest, z)
        sums = sums * tl.exp(largest - more) + tl.exp(z - more)
        largest = more
    most = tl.max(largest, 0)
    log_z = most + tl.log(tl.sum(sums * tl.exp(largest - most), 0))
    plain = log_z - tl.sum(own, 0)
    loss = plain + z_loss * log_z * log_z
    if SMOOTHED:
        loss += smoothing * (log_z - tl.sum(total, 0) / size - plain)
    tl.store(nats + row, tl.where(counts > 0, plain, 0.0))
    tl.store(losses + row, tl.where(counts > 0, loss, 0.0))
    if SLOPES:
        rise = 1 + 2 * z_loss * log_z
        for first in range(0, size, BLOCK):
            inside = first + place < size
            z = _capped(tl.load(logits + first + place, mask=inside, other=0.0).to(tl.float32), cap, CAPPED)
            slope = tl.exp(z - log_z) * rise - tl.where(first + place == target, 1 - smoothing, 0.0)
            if SMOOTHED:
                slope -= smoothing / size
            if CAPPED:
                slope *= 1 - (z / cap) * (z / cap)
            tl.store(logits + first + place, (counts * slope).to(logits.dtype.element_ty), mask=inside)
