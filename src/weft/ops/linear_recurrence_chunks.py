"""A linear recurrence over matrices in chunks of tokens, forward and backward, by matrix products alone.

    S_t = diag(a_t) S_{t-1} + k_t v_t^T,   o_t = q_t S_t          (a_t = exp of the logarithm of the decay)

Inside a chunk queries meet keys in products of C x C scores; from chunk to chunk goes the state. Decays enter as sums
of logarithms over the tokens between a key and its query, never as differences of sums from the first token on: so a
decay of zero (minus infinity) is exact and no exponential overflows. Nothing of the size of a state is kept for a
token: memory beside the arguments and results is that of a segment's scores and of its chunks' states (Yang et al.
2024, sections 3.2 and 4.2).

The backward pass reads the arguments alone and computes the states again. The gradient of a decay is that of all pairs
of a query at or after its token and a key before it; in a chunk that is the sum, from the token on, of q dq - k dk, and
for what passes the chunk's end the product of the state there and its gradient.

Letters: b rows, k key heads, g query heads of each, n chunks, i and j tokens of a chunk, e features of a key, f of a
value; h blocks inside a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 64
"""Tokens of a chunk: scores cost C (E + F) multiplications a token, and a state E F / C numbers."""

SEGMENT = 32 * CHUNK
"""Tokens whose chunks are computed together; scores and states are there for one segment at a time."""


class Cut(NamedTuple):
    """The arguments of a run of whole chunks.

    Attributes:
        q: [b,k,n,g,i,e].
        k: [b,k,n,j,e].
        v: [b,k,n,j,f].
        log_decay: [#b,k,#n,j,1], [b,k,n,j,e] or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None


class Decays(NamedTuple):
    """The products of a chunk's decays, at most 1: of the tokens up to each query, of those after each key, of all."""

    into: Tensor
    out: Tensor
    over: Tensor


Arguments = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""q [B,T,H,E], k [B,T,K,E], v [B,T,K,F] and the logarithm of the decay, [B,T,K,E], [B,T,K,1], [1,1,K,1] or None."""


def pieces(steps: int) -> list[tuple[int, int, int]]:
    """First token, end, and tokens of a chunk, of the segments of a sequence and of the rest after its whole chunks."""
    whole = steps - steps % CHUNK
    found = [(first, min(first + SEGMENT, whole), CHUNK) for first in range(0, whole, SEGMENT)]
    return found + ([(whole, steps, steps - whole)] if whole < steps else [])


def forward(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs [B,T,H,F] and the state after the last token, [B,K,E,F]."""
    outputs = []
    for first, end, size in pieces(q.shape[1]):
        cut = _cut((q, k, v, log_decay), first, end, size)
        decays = _decays(cut)
        entering, before = _states(cut, decays, before)
        late = cut.q if decays is None else cut.q * decays.into[:, :, :, None]
        y = torch.einsum("bkngie,bknef->bkngif", late, entering) + _within(cut)
        outputs.append(_joined(y))
    return torch.cat(outputs, 1), before


def backward(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None,
             before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """Gradients of q, k, v, the logarithm of the decay and the state before, from those of `forward`'s results."""
    arguments, places, states = (q, k, v, log_decay), pieces(q.shape[1]), [before]
    for first, end, size in places[:-1]:
        cut = _cut(arguments, first, end, size)
        states.append(_states(cut, _decays(cut), states[-1])[1])
    found = []
    for (first, end, size), state in reversed(list(zip(places, states, strict=True))):
        cut = _cut(arguments, first, end, size)
        decays = _decays(cut)
        entering, after = _states(cut, decays, state)
        above = _heads(grad[:, first:end], k.shape[2], size)
        slopes, grad_after = _piece_backward(cut, decays, entering, after, above, grad_after)
        found.append(slopes)
    found.reverse()
    columns = list(zip(*found, strict=True))
    dq, dk, dv = (torch.cat([_joined(each if each.dim() == 6 else each[:, :, :, None]) for each in column], 1)
                  for column in columns[:3])
    return dq, dk, dv, _decay_gradient(log_decay, columns[3]), grad_after


def _decay_gradient(log_decay: Tensor | None, found: tuple[Tensor, ...]) -> Tensor | None:
    if log_decay is None:
        return None
    whole = torch.cat([_joined(each[:, :, :, None]) for each in found], 1)
    return (whole if log_decay.shape[3] > 1 else whole.sum(3, keepdim=True)).sum_to_size(log_decay.shape)


def _cut(arguments: Arguments, first: int, end: int, size: int) -> Cut:
    q, k, v, log_decay = arguments
    if log_decay is not None:
        log_decay = (log_decay.expand(-1, size, -1, -1) if log_decay.shape[1] == 1 and k.shape[1] > 1
                     else log_decay[:, first:end])
        log_decay = _heads(log_decay, k.shape[2], size)[:, :, :, 0]
    key, value = (_heads(each[:, first:end], k.shape[2], size)[:, :, :, 0] for each in (k, v))
    return Cut(_heads(q[:, first:end], k.shape[2], size), key, value, log_decay)


def _heads(x: Tensor, heads: int, size: int) -> Tensor:
    """[B,T,H,E] as [b,k,n,g,i,e]."""
    batch, steps, wide, features = x.shape
    return x.reshape(batch, steps // size, size, heads, wide // heads, features).permute(0, 3, 1, 4, 2, 5).contiguous()


def _joined(x: Tensor) -> Tensor:
    """The inverse of `_heads`."""
    return x.permute(0, 2, 4, 1, 3, 5).flatten(3, 4).flatten(1, 2)


def _prefix(log_decay: Tensor) -> Tensor:
    """exp of the sum up to each token, its own included."""
    return log_decay.cumsum(-2).exp()


def _suffix(log_decay: Tensor) -> Tensor:
    """exp of the sum after each token, its own excluded."""
    later = F.pad(log_decay[..., 1:, :], (0, 0, 0, 1))
    return later.flip(-2).cumsum(-2).flip(-2).exp()


def _decays(cut: Cut) -> Decays | None:
    if cut.log_decay is None:
        return None
    into = _prefix(cut.log_decay)
    return Decays(into, _suffix(cut.log_decay), into[..., -1, :])


def _states(cut: Cut, decays: Decays | None, before: Tensor) -> tuple[Tensor, Tensor]:
    """The state with which each chunk begins, [b,k,n,e,f], and the one after the last."""
    early = cut.k if decays is None else cut.k * decays.out
    added = torch.einsum("bknje,bknjf->bknef", early, cut.v)
    if decays is None:
        sums = torch.cat([before[:, :, None], added], 2).cumsum(2)
        return sums[:, :, :-1], sums[:, :, -1].clone()  # a view would keep all of them alive as long as the state
    over = decays.over.expand(-1, -1, added.shape[2], -1)
    states = [before]
    for kept, new in zip(over.unbind(2), added.unbind(2), strict=True):
        states.append(states[-1] * kept[..., None] + new)
    return torch.stack(states[:-1], 2), states[-1]


def _states_backward(added: Tensor, decays: Decays | None, grad_after: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the state after each chunk, [b,k,n,e,f], and of the one before the first.

    Args:
        added: the gradient of each chunk's first state that its own outputs give.
        decays: of the chunks.
        grad_after: of the state after the last.
    """
    if decays is None:
        sums = torch.cat([added, grad_after[:, :, None]], 2).flip(2).cumsum(2).flip(2)
        return sums[:, :, 1:], sums[:, :, 0]
    over = decays.over.expand(-1, -1, added.shape[2], -1)
    slopes = [grad_after]
    for kept, new in reversed(list(zip(over.unbind(2), added.unbind(2), strict=True))):
        slopes.append(slopes[-1] * kept[..., None] + new)
    return torch.stack(slopes[-2::-1], 2), slopes[-1]


def _piece_backward(cut: Cut, decays: Decays | None, entering: Tensor, after: Tensor, above: Tensor,
                    grad_after: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor | None], Tensor]:
    """Gradients of a cut's tensors, from those of its outputs ``above`` [b,k,n,g,i,f] and of the state after it; and of
    the state before it."""
    late = cut.q if decays is None else cut.q * decays.into[:, :, :, None]
    early = cut.k if decays is None else cut.k * decays.out
    reaching = torch.einsum("bkngie,bkngif->bknef", late, above)
    leaving, grad_before = _states_backward(reaching, decays, grad_after)
    dq = torch.einsum("bkngif,bknef->bkngie", above, entering)
    dk = torch.einsum("bknjf,bknef->bknje", cut.v, leaving)
    dv = torch.einsum("bknje,bknef->bknjf", early, leaving)
    if decays is not None:
        dq, dk = dq * decays.into[:, :, :, None], dk * decays.out
    inner = _within_backward(cut, above)
    dq, dk, dv = dq + inner[0], dk + inner[1], dv + inner[2]
    if decays is None:
        return (dq, dk, dv, None), grad_before
    passing = torch.cat([entering[:, :, 1:], after[:, :, None]], 2).mul(leaving).sum(-1)
    own = (cut.q * dq).sum(3) - cut.k * dk
    return (dq, dk, dv, own.flip(-2).cumsum(-2).flip(-2) + passing[..., None, :]), grad_before


# Inside a chunk.


def _within(cut: Cut) -> Tensor:
    """What the keys of a chunk add to its queries' outputs."""
    if cut.log_decay is not None and cut.log_decay.shape[-1] > 1:
        return _by_blocks(cut)
    scores = _weighed(torch.einsum("bkngie,bknje->bkngij", cut.q, cut.k), cut.log_decay)
    return torch.einsum("bkngij,bknjf->bkngif", scores, cut.v)


def _within_backward(cut: Cut, above: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if cut.log_decay is not None and cut.log_decay.shape[-1] > 1:
        return _by_blocks_backward(cut, above)
    scores = _weighed(torch.einsum("bkngie,bknje->bkngij", cut.q, cut.k), cut.log_decay)
    slopes = _weighed(torch.einsum("bkngif,bknjf->bkngij", above, cut.v), cut.log_decay)
    return (torch.einsum("bkngij,bknje->bkngie", slopes, cut.k), torch.einsum("bkngij,bkngie->bknje", slopes, cut.q),
            torch.einsum("bkngij,bkngif->bknjf", scores, above))


def _weighed(scores: Tensor, log_decay: Tensor | None) -> Tensor:
    """Scores [b,k,n,g,i,j] times the decays from key to query, zero for later keys."""
    if log_decay is None:
        return scores.tril()
    size = log_decay.shape[-2]
    sums = log_decay.expand(*log_decay.shape[:-1], size).tril(-1).cumsum(-2)  # over the tokens after j up to i
    return scores * sums.exp().tril()[:, :, :, None]


def _levels(size: int) -> Iterator[int]:
    """Half the size of the blocks into which a chunk is cut: 1, 2, 4, ... Every pair of a query and an earlier key lies
    in the later and the earlier half of one block of one level."""
    half = 1
    while half < size:
        yield half
        half *= 2


class _Halves(NamedTuple):
    """Of the blocks of a level: queries of the later half [b,k,n,g,h,i,e] and keys and values of the earlier one
    [b,k,n,h,j,e or f], both with their decays to the border between the halves, and these decays."""

    q: Tensor
    k: Tensor
    v: Tensor
    into: Tensor
    out: Tensor


def _halves(cut: Cut, half: int) -> _Halves:
    assert cut.log_decay is not None, "blocks are for decays by feature"
    q, k, v, log_decay = (each.unflatten(-2, (-1, 2, half)) for each in (cut.q, cut.k, cut.v, cut.log_decay))
    into, out = _prefix(log_decay[..., 1, :, :]), _suffix(log_decay[..., 0, :, :])
    return _Halves(q[..., 1, :, :] * into[:, :, :, None], k[..., 0, :, :] * out, v[..., 0, :, :], into, out)


def _padded(cut: Cut) -> Cut:
    """A chunk of a power of two of tokens; the further ones change nothing."""
    more = (1 << (cut.k.shape[-2] - 1).bit_length()) - cut.k.shape[-2]
    if more == 0 or cut.log_decay is None:
        return cut
    q, k, v, log_decay = (F.pad(each, (0, 0, 0, more)) for each in (cut.q, cut.k, cut.v, cut.log_decay))
    return Cut(q, k, v, log_decay)


def _spread(part: Tensor, later: bool, size: int) -> Tensor:
    """What belongs to one half of every block, zeros in the other, without the tokens that `_padded` added."""
    both = [torch.zeros_like(part), part] if later else [part, torch.zeros_like(part)]
    return torch.stack(both, -3).flatten(-4, -2)[..., :size, :]


def _by_blocks(cut: Cut) -> Tensor:
    """Decays by feature do not factor out of a product of queries and keys, unless both are taken to a border between
    them: so scores are computed for the two halves of blocks of 2, 4, 8, ... tokens."""
    size, wide = cut.k.shape[-2], _padded(cut)
    y = (cut.q * cut.k[:, :, :, None]).sum(-1, keepdim=True) * cut.v[:, :, :, None]
    for half in _levels(size):
        part = _halves(wide, half)
        scores = torch.einsum("bknghie,bknhje->bknghij", part.q, part.k)
        y = y + _spread(torch.einsum("bknghij,bknhjf->bknghif", scores, part.v), True, size)
    return y


def _by_blocks_backward(cut: Cut, above: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    size, wide = cut.k.shape[-2], _padded(cut)
    score = (cut.q * cut.k[:, :, :, None]).sum(-1, keepdim=True)
    slope = (above * cut.v[:, :, :, None]).sum(-1, keepdim=True)
    dq, dk, dv = slope * cut.k[:, :, :, None], (slope * cut.q).sum(3), (score * above).sum(3)
    padded = F.pad(above, (0, 0, 0, wide.k.shape[-2] - size))
    for half in _levels(size):
        part, over = _halves(wide, half), padded.unflatten(-2, (-1, 2, half))[..., 1, :, :]
        scores = torch.einsum("bknghie,bknhje->bknghij", part.q, part.k)
        slopes = torch.einsum("bknghif,bknhjf->bknghij", over, part.v)
        late = torch.einsum("bknghij,bknhje->bknghie", slopes, part.k) * part.into[:, :, :, None]
        early = torch.einsum("bknghij,bknghie->bknhje", slopes, part.q) * part.out
        dq, dk = dq + _spread(late, True, size), dk + _spread(early, False, size)
        dv = dv + _spread(torch.einsum("bknghij,bknghif->bknhjf", scores, over), False, size)
    return dq, dk, dv


def products(sizes: tuple[int, int, int, int, int], steps: int, by_feature: bool, *, slopes: bool) -> int:
    """Operations of the matrix products of `forward`, or with ``slopes`` of `backward`.

    Args:
        sizes: rows, key heads, query heads of each, features of a key and of a value.
        steps: tokens.
        by_feature: whether decays differ between the features of a key.
    """
    rows, heads, group, e, f = sizes
    total = 0
    for first, end, size in pieces(steps):
        states = [(e, f, size)]
        states += ([(e, f, group * size), (group * size, e, f), (size, e, f), (size, f, e)] if slopes
                   else [(group * size, f, e)])
        if slopes and end < steps:
            states.append((e, f, size))  # once for the state that the next segment begins with
        total += _operations(states, rows * heads * ((end - first) // size))
        wide = 1 << (size - 1).bit_length()
        squares = [(half, wide // (2 * half)) for half in _levels(size)] if by_feature else [(size, 1)]
        for each, blocks in squares:
            inner = [(group * each, each, e)]
            inner += [(group * each, each, f), (group * each, e, each), (each, e, group * each),
                      (each, f, group * each)] if slopes else [(group * each, f, each)]
            total += _operations(inner, rows * heads * blocks * ((end - first) // size))
    return total


def _operations(shapes: list[tuple[int, int, int]], count: int) -> int:
    """Of so many products M x K times K x N, (M, N, K) each; one with K = 1 is an element-wise product."""
    return 2 * count * sum(m * n * k for m, n, k in shapes if k > 1)
