"""The delta rule over matrices in chunks of tokens, forward and backward, by matrix products and triangular systems.

    S_t = (diag(exp(g_t)) + b_t a_t^T) S_{t-1} + k_t v_t^T,   o_t = q_t S_t

Every token writes two vectors with their rows: b_t with what a_t reads before it, u_t = a_t^T S_{t-1}, and k_t with
v_t. Inside a chunk that begins with S,

    u_t = a_t^T D_{t-1} S + sum over s < t of (AB_ts u_s + AK_ts v_s),      AB_ts = a_t^T diag(D_{t-1} / D_s) b_s

where D_t is the product of the chunk's decays up to t: a triangular system (I - AB) U = A S + AK V, solved for A and
AK V at once, so that U = W S + Y (the WY representation of Yang et al. 2024b, section 3.2, and 2025, section 3.3, with
any a and b and with decays by feature). Outputs and the next state follow by products as in `linear_recurrence_chunks`,
and as there decays enter as sums of logarithms over the tokens between a writing and a reading one: no exponential
overflows, and minus infinity clears. Memory beside arguments and results is that of one segment's scores and of its
chunks' states; the backward pass reads the arguments alone and computes the rest again.

As readers of a chunk count its q_t and, one row earlier, its a_t: a_{t+1} reads what q_t reads, S_t. Letters: b rows, h
heads, n chunks, r readers, w writers, i and j tokens of a chunk, e features of a key, f of a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.ops.linear_recurrence_chunks import CHUNK, SEGMENT

Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""q [B,T,H,E], k [B,T,H,E], v [B,T,H,F], a and b [B,T,H,E], and the logarithm of the decay, [B,T,H,E or 1],
[1,1,H,E or 1] or None."""

Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor]
"""Of the arguments and of the state before."""


class DeltaRuleChunks(NamedTuple):
    """A run of chunks of the arguments, each [b,h,n,i,e or f]; the logarithm of the decay [#b,h,#n,i,#e] or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    a: Tensor
    b: Tensor
    log_decay: Tensor | None

    def readers(self) -> Tensor:
        """q and the next token's a, [b,h,n,r,i,e]."""
        return torch.stack([self.q, _next(self.a)], 3)

    def writers(self) -> Tensor:
        """b and k, [b,h,n,w,j,e]."""
        return torch.stack([self.b, self.k], 3)


class DecayedVectors(NamedTuple):
    """Vectors of a chunk with their decays from its beginning or to its end.

    Attributes:
        late: q, from the beginning up to the token.
        read: a, up to the token before.
        early: b and k to the end, [b,h,n,2j,e].
        over: the decays of the whole chunk, [#b,h,#n,#e], or None.
    """

    late: Tensor
    read: Tensor
    early: Tensor
    over: Tensor | None


class Solved(NamedTuple):
    """The vectors that a chunk's tokens read and write.

    Attributes:
        scores: of q with the writers, [b,h,n,i,2j].
        weights: W of U = W S + Y.
        rest: Y.
    """

    scores: Tensor
    system: Tensor
    keys: Tensor
    weights: Tensor
    rest: Tensor


class Passed(NamedTuple):
    """States that chunks begin with, [b,h,n,e,f], and what their writers write, u and v, [b,h,n,2j,f]."""

    entering: Tensor
    written: Tensor
    after: Tensor


def forward(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_decay: Tensor | None,
            before: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs [B,T,H,F] and the state after the last token, [B,H,E,F]."""
    outputs = []
    for first, end, size in segments(q.shape[1]):
        cut = _cut((q, k, v, a, b, log_decay), first, end, size)
        ends, solved = _ends(cut), _solve(cut)
        passed = _pass(cut, ends, solved, before)
        before = passed.after
        outputs.append(_joined(ends.late @ passed.entering + solved.scores @ passed.written, end - first))
    return torch.cat(outputs, 1), before


def backward(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor,
             log_decay: Tensor | None, before: Tensor) -> Gradients:
    """Gradients of `forward`'s arguments, from those of its results."""
    arguments, places, states = (q, k, v, a, b, log_decay), segments(q.shape[1]), [before]
    for first, end, size in places[:-1]:
        cut = _cut(arguments, first, end, size)
        states.append(_pass(cut, _ends(cut), _solve(cut), states[-1]).after)
    found: list[list[Tensor]] = []
    for (first, end, size), state in reversed(list(zip(places, states, strict=True))):
        above = _heads(grad[:, first:end], size)
        slopes, grad_after = _piece_backward(_cut(arguments, first, end, size), above, state, grad_after)
        found.append([_joined(each, end - first) for each in slopes])
    dq, dk, dv, da, db, *decay = (torch.cat(column[::-1], 1) for column in zip(*found, strict=True))
    if log_decay is None:
        return dq, dk, dv, da, db, None, grad_after
    slope = decay[0] if log_decay.shape[3] > 1 else decay[0].sum(3, keepdim=True)
    return dq, dk, dv, da, db, slope.sum_to_size(log_decay.shape), grad_after


def segments(steps: int) -> list[tuple[int, int, int]]:
    """First token, end, and tokens of a chunk, of the segments of a sequence and of the rest after its whole chunks,
    whose chunk is filled up to a power of two by tokens that change nothing."""
    whole = steps - steps % CHUNK
    found = [(first, min(first + SEGMENT, whole), CHUNK) for first in range(0, whole, SEGMENT)]
    return found + ([(whole, steps, 1 << (steps - whole - 1).bit_length())] if whole < steps else [])


def _cut(arguments: Arguments, first: int, end: int, size: int) -> DeltaRuleChunks:
    *vectors, log_decay = arguments
    q, k, v, a, b = (_heads(each[:, first:end], size) for each in vectors)
    if log_decay is not None:
        constant = log_decay.shape[1] == 1 and vectors[0].shape[1] > 1
        log_decay = _heads(log_decay.expand(-1, end - first, -1, -1) if constant else log_decay[:, first:end], size)
    return DeltaRuleChunks(q, k, v, a, b, log_decay)


def _heads(x: Tensor, size: int) -> Tensor:
    """[B,T,H,E] as [b,h,n,i,e], the last chunk filled up with zeros."""
    batch, steps, heads, features = x.shape
    whole = F.pad(x, (0, 0, 0, 0, 0, -steps % size)).reshape(batch, -1, size, heads, features)
    return whole.permute(0, 3, 1, 2, 4).contiguous()


def _joined(x: Tensor, steps: int) -> Tensor:
    """The inverse of `_heads`."""
    return x.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :steps]


def _next(x: Tensor) -> Tensor:
    """At every token of a chunk what belongs to the next one, zero at the last."""
    return F.pad(x[..., 1:, :], (0, 0, 0, 1))


def _previous(x: Tensor) -> Tensor:
    """At every token of a chunk what belongs to the one before, zero at the first."""
    return F.pad(x[..., :-1, :], (0, 0, 1, 0))


def _prefix(log_decay: Tensor) -> Tensor:
    """exp of the sum up to each token, its own included."""
    return log_decay.cumsum(-2).exp()


def _suffix(log_decay: Tensor) -> Tensor:
    """exp of the sum after each token, its own excluded."""
    return _next(log_decay).flip(-2).cumsum(-2).flip(-2).exp()


def _ends(cut: DeltaRuleChunks) -> DecayedVectors:
    writers = cut.writers()
    if cut.log_decay is None:
        return DecayedVectors(cut.q, cut.a, writers.flatten(3, 4), None)
    into = _prefix(cut.log_decay)
    early = writers * _suffix(cut.log_decay)[:, :, :, None]
    return DecayedVectors(cut.q * into, cut.a * _until(into), early.flatten(3, 4), into[..., -1, :])


def _until(into: Tensor) -> Tensor:
    """The decays up to the token before each, from those up to it."""
    return F.pad(into[..., :-1, :], (0, 0, 1, 0), value=1.0)


def _solve(cut: DeltaRuleChunks) -> Solved:
    scores = _scores(cut)
    own, read = scores[:, :, :, 0], _previous(scores[:, :, :, 1].flatten(-2)).unflatten(-1, scores.shape[-2:])
    system, keys = read.unbind(-2)
    right = torch.cat([_ends(cut).read, keys @ cut.v], -1)
    both = torch.linalg.solve_triangular(-system, right, upper=False, unitriangular=True)
    weights, rest = both.split_with_sizes([cut.k.shape[-1], cut.v.shape[-1]], -1)
    return Solved(own.flatten(-2), system, keys, weights, rest)


def _pass(cut: DeltaRuleChunks, ends: DecayedVectors, solved: Solved, before: Tensor) -> Passed:
    """From chunk to chunk."""
    states, written, by_chunk = [before], [], ends.early.mT
    for chunk in range(cut.k.shape[2]):
        state = states[-1]
        reading = solved.weights[:, :, chunk] @ state + solved.rest[:, :, chunk]
        written.append(torch.cat([reading, cut.v[:, :, chunk]], -2))
        states.append(_kept(state, ends.over, chunk) + by_chunk[:, :, chunk] @ written[-1])
    return Passed(torch.stack(states[:-1], 2), torch.stack(written, 2), states[-1])


def _kept(state: Tensor, over: Tensor | None, chunk: int) -> Tensor:
    """The state, or its gradient, over a chunk's decays."""
    return state if over is None else state * over[:, :, chunk, :, None]


def _piece_backward(cut: DeltaRuleChunks, above: Tensor, state: Tensor, grad_after: Tensor) -> tuple[list[Tensor],
                                                                                                     Tensor]:
    """Gradients of a cut's tensors, from those of its outputs ``above`` [b,h,n,i,f] and of the state after it; and of
    the state before it."""
    ends, solved = _ends(cut), _solve(cut)
    passed = _pass(cut, ends, solved, state)
    leaving, reading, grad_before = _pass_backward(cut, ends, solved, above, grad_after)
    # Gradients by what passes the borders of chunks.
    size, into_state = cut.k.shape[-2], passed.entering.mT
    dq, da = above @ into_state, reading @ into_state
    writing = passed.written @ leaving.mT
    dv = (ends.early @ leaving)[..., size:, :] + solved.scores.mT[..., size:, :] @ above + solved.keys.mT @ reading
    if cut.log_decay is not None:
        into = _prefix(cut.log_decay)
        dq, da = dq * into, da * _until(into)
        writing = (writing.unflatten(-2, (2, -1)) * _suffix(cut.log_decay)[:, :, :, None]).flatten(3, 4)
    # Gradients by scores inside chunks.
    slopes = torch.stack([above, _next(reading)], 3) @ passed.written[:, :, :, None].mT
    readers, writers = _scores_backward(cut, slopes.unflatten(-1, (2, -1)))
    dq, da = dq + readers[:, :, :, 0], da + _previous(readers[:, :, :, 1])
    db, dk = (writing.unflatten(-2, (2, -1)) + writers).unbind(3)
    found = [dq, dk, dv, da, db]
    if cut.log_decay is not None:
        after = torch.cat([passed.entering[:, :, 1:], passed.after[:, :, None]], 2)
        own = cut.q * dq + _next(cut.a * da) - cut.b * db - cut.k * dk
        found.append(own.flip(-2).cumsum(-2).flip(-2) + (after * leaving).sum(-1)[..., None, :])
    return found, grad_before


def _pass_backward(cut: DeltaRuleChunks, ends: DecayedVectors, solved: Solved, above: Tensor,
                   grad_after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the state after each chunk, [b,h,n,e,f], of the right side of each triangular system, and of the
    state before the first chunk."""
    size = cut.k.shape[-2]
    right = torch.cat([ends.early[..., :size, :], solved.scores.mT[..., :size, :] @ above], -1)
    both = torch.linalg.solve_triangular(-solved.system.mT, right, upper=True, unitriangular=True)
    weights, rest = both.split_with_sizes([cut.k.shape[-1], cut.v.shape[-1]], -1)
    own, read = ends.late.mT @ above, ends.read.mT
    leaving, reading = [grad_after], []
    for chunk in reversed(range(cut.k.shape[2])):
        slope = leaving[-1]
        reading.append(weights[:, :, chunk] @ slope + rest[:, :, chunk])
        leaving.append(_kept(slope, ends.over, chunk) + own[:, :, chunk] + read[:, :, chunk] @ reading[-1])
    return torch.stack(leaving[-2::-1], 2), torch.stack(reading[::-1], 2), leaving[-1]


# Scores of readers and writers inside a chunk.


def _scores(cut: DeltaRuleChunks) -> Tensor:
    """The products of every reader with every writer, times the decays between them, zero for later ones;
    [b,h,n,r,i,w,j]."""
    if cut.log_decay is not None and cut.log_decay.shape[-1] > 1:
        return _by_blocks(cut)
    readers, writers = cut.readers(), cut.writers()
    scores = readers.flatten(3, 4) @ writers.flatten(3, 4).mT
    return _weighed(scores.unflatten(-1, writers.shape[3:5]).unflatten(3, readers.shape[3:5]), cut.log_decay)


def _scores_backward(cut: DeltaRuleChunks, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of readers [b,h,n,r,i,e] and writers [b,h,n,w,j,e]."""
    if cut.log_decay is not None and cut.log_decay.shape[-1] > 1:
        return _by_blocks_backward(cut, slopes)
    readers, writers = cut.readers(), cut.writers()
    flat = _weighed(slopes, cut.log_decay).flatten(-2).flatten(3, 4)
    return ((flat @ writers.flatten(3, 4)).view_as(readers), (flat.mT @ readers.flatten(3, 4)).view_as(writers))


def _weighed(scores: Tensor, log_decay: Tensor | None) -> Tensor:
    size = scores.shape[-1]
    if log_decay is None:
        return scores * scores.new_ones(size, size).tril()[:, None]
    sums = log_decay.expand(*log_decay.shape[:-1], size).tril(-1).cumsum(-2)  # over the tokens after j up to i
    return scores * sums.exp().tril()[:, :, :, None, :, None]


def _levels(size: int) -> Iterator[int]:
    """Half the size of the blocks into which a chunk is cut: 1, 2, 4, ... Every pair of a reader and an earlier writer
    lies in the later and the earlier half of one block of one level."""
    half = 1
    while half < size:
        yield half
        half *= 2


class _DeltaRuleHalves(NamedTuple):
    """The halves of a level's blocks, x in number: readers of the later half and writers of the earlier one,
    [b,h,n,x,2i,e], both with their decays to the border between the halves, and these decays [b,h,n,x,i,e]."""

    readers: Tensor
    writers: Tensor
    into: Tensor
    out: Tensor


def _halves(readers: Tensor, writers: Tensor, log_decay: Tensor, half: int) -> _DeltaRuleHalves:
    decays = log_decay.unflatten(-2, (-1, 2, half))
    into, out = _prefix(decays[..., 1, :, :]), _suffix(decays[..., 0, :, :])
    late = readers.unflatten(-2, (-1, 2, half))[..., 1, :, :] * into[:, :, :, None]
    early = writers.unflatten(-2, (-1, 2, half))[..., 0, :, :] * out[:, :, :, None]
    return _DeltaRuleHalves(late.transpose(3, 4).flatten(4, 5), early.transpose(3, 4).flatten(4, 5), into, out)


def _by_blocks(cut: DeltaRuleChunks) -> Tensor:
    """Decays by feature do not factor out of a product of readers and writers, unless both are taken to a border
    between them: so scores are computed for the two halves of blocks of 2, 4, 8, ... tokens."""
    assert cut.log_decay is not None, "blocks are for decays by feature"
    readers, writers = cut.readers(), cut.writers()
    # [b,h,n,x,r,i,w,j]: the x blocks on the diagonal, at first of one token.
    found = (readers[:, :, :, :, None] * writers[:, :, :, None]).sum(-1).movedim(-1, 3)[..., :, None, :, None]
    for half in _levels(cut.k.shape[-2]):
        part = _halves(readers, writers, cut.log_decay, half)
        below = (part.readers @ part.writers.mT).unflatten(-1, (2, half)).unflatten(-3, (2, half))
        first, second = found.unflatten(3, (-1, 2)).unbind(4)
        top, bottom = torch.cat([first, torch.zeros_like(first)], -1), torch.cat([below, second], -1)
        found = torch.cat([top, bottom], -3)
    return found[:, :, :, 0]


def _by_blocks_backward(cut: DeltaRuleChunks, slopes: Tensor) -> tuple[Tensor, Tensor]:
    assert cut.log_decay is not None, "blocks are for decays by feature"
    readers, writers = cut.readers(), cut.writers()
    dreaders, dwriters = torch.zeros_like(readers), torch.zeros_like(writers)
    found = slopes[:, :, :, None]
    for half in reversed(list(_levels(cut.k.shape[-2]))):
        part = _halves(readers, writers, cut.log_decay, half)
        below = found[..., half:, :, :half].flatten(-2).flatten(4, 5)
        late = (below @ part.writers).unflatten(4, (2, half)).transpose(3, 4) * part.into[:, :, :, None]
        early = (below.mT @ part.readers).unflatten(4, (2, half)).transpose(3, 4) * part.out[:, :, :, None]
        dreaders = dreaders + torch.stack([torch.zeros_like(late), late], -3).flatten(-4, -2)
        dwriters = dwriters + torch.stack([early, torch.zeros_like(early)], -3).flatten(-4, -2)
        found = torch.stack([found[..., :half, :, :half], found[..., half:, :, half:]], 4).flatten(3, 4)
    own = found[..., 0, :, 0].movedim(3, -1)[..., None]
    return dreaders + (own * writers[:, :, :, None]).sum(4), dwriters + (own * readers[:, :, :, :, None]).sum(3)


def products(shape: tuple[int, ...], features: int, by_feature: bool, *, slopes: bool) -> int:
    """Operations of the matrix products and triangular systems of `forward`, or with ``slopes`` of `backward`.

    Args:
        shape: of the values, [B,T,H,F].
        features: E.
        by_feature: whether decays differ between the features of a key.
        slopes: see above.
    """
    rows, steps, heads, f = shape
    e, total = features, 0
    for first, end, size in segments(steps):
        squares = [(half, size // (2 * half)) for half in _levels(size)] if by_feature else [(size, 1)]
        scores = sum(2 * half * 2 * half * e * blocks for half, blocks in squares)
        solving = scores + size * size * f + size * size * (e + f) // 2
        passing = size * e * f + e * 2 * size * f
        each = solving + passing
        if slopes:
            each += solving + passing if end < steps else 0  # once for the state that the next segment begins with
            each += size * size * f + size * size * (e + f) // 2 + 3 * size * e * f  # from chunk to chunk
            each += 5 * size * e * f + 2 * size * 2 * size * f + 2 * size * size * f  # to q, a, b, k, v and scores
            each += size * e * f + 2 * scores
        else:
            each += size * e * f + size * 2 * size * f
        total += each * -(-(end - first) // size)
    return 2 * rows * heads * total
