"""A linear recurrence over matrices in chunks of tokens, forward and backward, by matrix products alone.

    S_t = diag(a_t) S_{t-1} + k_t v_t^T,   o_t = q_t S_t          (a_t = exp of the logarithm of the decay)

Inside a chunk queries meet keys in products of C x C scores; from chunk to chunk goes the state. Decays enter as sums
of logarithms over the tokens between a key and its query, never as differences of sums from the first token on: so a
decay of zero (minus infinity) is exact and no exponential overflows. Nothing of the size of a state is kept for a
token: memory beside the arguments and results is that of a segment's scores and of its chunks' states (Yang et al.
2024, sections 3.2 and 4.2).

The backward pass reads the arguments alone and computes the states again. The gradient of a decay is that of all pairs
of a query at or after its token and a key before it. It is a sum of these pairs and of nothing else: q dq - k dk summed
from the token on is equal, but there the pairs of a query and the key of its own token cancel, which no decay makes
smaller, and in float32 what a strong decay leaves is lost in their rounding.

Letters: b rows, k key heads, r states of each, g query heads of each state, n chunks, i and j tokens of a chunk, e
features of a key, f of a value; h blocks inside a chunk. What states share has r = 1 and is never copied for each.
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


class RecurrenceChunks(NamedTuple):
    """The arguments of a run of whole chunks.

    Attributes:
        q: [b,k,#r,n,g,i,e].
        k: [b,k,1,n,j,e].
        v: [b,k,r,n,j,f].
        log_decay: [#b,k,r,#n,j,1], [b,k,r,n,j,e] or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None

    def decays(self) -> Decays:
        """The tensors that meet the states at its borders, with its decays applied."""
        if self.log_decay is None:
            return Decays(None, None, None)
        into = _prefix(self.log_decay)
        return Decays(into, _suffix(self.log_decay), into[..., -1, :])


class Decays(NamedTuple):
    """The products of a chunk's decays, at most 1: of the tokens up to each query, of those after each key, of all.

    Those that differ by feature are factors of queries and keys; one number for all features is a factor of values and
    results, which are of each state, so that shared queries and keys stay shared. All None: there is no decay.
    """

    into: Tensor | None
    out: Tensor | None
    over: Tensor | None

    def by_feature(self) -> bool:
        """Whether decays differ between the features of a key."""
        return self.into is not None and self.into.shape[-1] > 1

    def queries(self, x: Tensor) -> Tensor:
        """Queries, or their gradients, [b,k,#r,n,g,i,e]."""
        return x * self.into[..., None, :, :] if self.into is not None and self.by_feature() else x

    def results(self, x: Tensor) -> Tensor:
        """The readings of queries from the state before the chunk, or gradients of results, [b,k,r,n,g,i,f]."""
        return x if self.into is None or self.by_feature() else x * self.into[..., None, :, :]

    def keys(self, x: Tensor) -> Tensor:
        """Keys, or their gradients, [b,k,#r,n,j,e]."""
        return x * self.out if self.out is not None and self.by_feature() else x

    def values(self, x: Tensor) -> Tensor:
        """Values, or their gradients, [b,k,r,n,j,f]."""
        return x if self.out is None or self.by_feature() else x * self.out


def pieces(steps: int) -> list[tuple[int, int, int]]:
    """First token, end, and tokens of a chunk, of the segments of a sequence and of the rest after its whole chunks."""
    whole = steps - steps % CHUNK
    found = [(first, min(first + SEGMENT, whole), CHUNK) for first in range(0, whole, SEGMENT)]
    return found + ([(whole, steps, steps - whole)] if whole < steps else [])


def shapes(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    """Empty tensors for the results of `forward`."""
    return v.new_empty(*q.shape[:2], max(q.shape[2], v.shape[2]), v.shape[3]), before.new_empty(before.shape)


def forward(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs [B,T,max(H,K),F] and the state after the last token, [B,K,E,F]."""
    outputs, state = [], before.unflatten(1, (k.shape[2], -1))
    for first, end, size in pieces(q.shape[1]):
        cut = _cut((q, k, v, log_decay), first, end, size)
        decays = cut.decays()
        entering, state = _states(cut, decays, state)
        y = decays.results(torch.einsum("bkrngie,bkrnef->bkrngif", decays.queries(cut.q), entering)) + _within(cut)
        outputs.append(_joined(y))
    return torch.cat(outputs, 1), state.flatten(1, 2)


def backward(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None,
             before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """Gradients of q, k, v, the logarithm of the decay and the state before, from those of `forward`'s results."""
    arguments, places = (q, k, v, log_decay), pieces(q.shape[1])
    states = [before.unflatten(1, (k.shape[2], -1))]
    for first, end, size in places[:-1]:
        cut = _cut(arguments, first, end, size)
        states.append(_states(cut, cut.decays(), states[-1])[1])
    found, grad_state = [], grad_after.unflatten(1, (k.shape[2], -1))
    for (first, end, size), state in reversed(list(zip(places, states, strict=True))):
        cut = _cut(arguments, first, end, size)
        decays = cut.decays()
        entering, after = _states(cut, decays, state)
        above = _heads(grad[:, first:end], k.shape[2], v.shape[2], size)
        slopes, grad_state = _piece_backward(cut, decays, entering, after, above, grad_state)
        found.append(slopes)
    found.reverse()
    columns = list(zip(*found, strict=True))
    dq, dk, dv = (torch.cat([_joined(each if each.dim() == 7 else each[..., None, :, :]) for each in column], 1)
                  for column in columns[:3])
    if log_decay is None:
        return dq, dk, dv, None, grad_state.flatten(1, 2)
    whole = torch.cat([_joined(each[..., None, :, :]) for each in columns[3]], 1)
    whole = whole if log_decay.shape[3] > 1 else whole.sum(3, keepdim=True)
    return dq, dk, dv, whole.sum_to_size(log_decay.shape), grad_state.flatten(1, 2)


def _cut(arguments: tuple[Tensor, Tensor, Tensor, Tensor | None], first: int, end: int, size: int) -> RecurrenceChunks:
    q, k, v, log_decay = arguments
    keys, states = k.shape[2], v.shape[2]
    if log_decay is not None:
        log_decay = (log_decay.expand(-1, size, -1, -1) if log_decay.shape[1] == 1 and k.shape[1] > 1
                     else log_decay[:, first:end])
        log_decay = _heads(log_decay, keys, states, size)[..., 0, :, :]
    key, value = (_heads(each[:, first:end], keys, states, size)[..., 0, :, :] for each in (k, v))
    return RecurrenceChunks(_heads(q[:, first:end], keys, states, size), key, value, log_decay)


def _heads(x: Tensor, keys: int, states: int, size: int) -> Tensor:
    """[B,T,H,E] as [b,k,r,n,g,i,e]; r is 1 for what the states of a key head share."""
    batch, steps, wide, features = x.shape
    heads = (keys, max(1, min(wide, states) // keys), max(1, wide // states))
    return x.reshape(batch, steps // size, size, *heads, features).permute(0, 3, 4, 1, 5, 2, 6).contiguous()


def _joined(x: Tensor) -> Tensor:
    """The inverse of `_heads`."""
    return x.permute(0, 3, 5, 1, 2, 4, 6).flatten(3, 5).flatten(1, 2)


def _prefix(log_decay: Tensor) -> Tensor:
    """exp of the sum up to each token, its own included."""
    return log_decay.cumsum(-2).exp()


def _suffix(log_decay: Tensor) -> Tensor:
    """exp of the sum after each token, its own excluded."""
    later = F.pad(log_decay[..., 1:, :], (0, 0, 0, 1))
    return _from_on(later).exp()


def _states(cut: RecurrenceChunks, decays: Decays, before: Tensor) -> tuple[Tensor, Tensor]:
    """The state with which each chunk begins, [b,k,r,n,e,f], and the one after the last."""
    added = torch.einsum("bkrnje,bkrnjf->bkrnef", decays.keys(cut.k), decays.values(cut.v))
    if decays.over is None:
        sums = torch.cat([before[:, :, :, None], added], 3).cumsum(3)
        return sums[:, :, :, :-1], sums[:, :, :, -1].clone()  # a view would keep all alive as long as the state
    over = decays.over.expand(-1, -1, -1, added.shape[3], -1)
    states = [before]
    for kept, new in zip(over.unbind(3), added.unbind(3), strict=True):
        states.append(states[-1] * kept[..., None] + new)
    return torch.stack(states[:-1], 3), states[-1]


def _states_backward(added: Tensor, decays: Decays, grad_after: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the state after each chunk, [b,k,r,n,e,f], and of the one before the first.

    Args:
        added: the gradient of each chunk's first state that its own outputs give.
        grad_after: of the state after the last.
    """
    if decays.over is None:
        sums = torch.cat([added, grad_after[:, :, :, None]], 3).flip(3).cumsum(3).flip(3)
        return sums[:, :, :, 1:], sums[:, :, :, 0]
    over = decays.over.expand(-1, -1, -1, added.shape[3], -1)
    slopes = [grad_after]
    for kept, new in reversed(list(zip(over.unbind(3), added.unbind(3), strict=True))):
        slopes.append(slopes[-1] * kept[..., None] + new)
    return torch.stack(slopes[-2::-1], 3), slopes[-1]


def _piece_backward(cut: RecurrenceChunks, decays: Decays, entering: Tensor, after: Tensor, above: Tensor,
                    grad_after: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor | None], Tensor]:
    """Gradients of a cut's tensors, from those of its outputs ``above`` [b,k,r,n,g,i,f] and of the state after it; and
    of the state before it."""
    late, early = decays.queries(cut.q), decays.keys(cut.k)
    seen, held = decays.results(above), decays.values(cut.v)
    reaching = torch.einsum("bkrngie,bkrngif->bkrnef", late, seen)
    leaving, grad_before = _states_backward(reaching, decays, grad_after)
    dq = decays.queries(torch.einsum("bkrngif,bkrnef->bkrngie", seen, entering))
    dk = decays.keys(torch.einsum("bkrnjf,bkrnef->bkrnje", held, leaving))
    dv = decays.values(torch.einsum("bkrnje,bkrnef->bkrnjf", early, leaving))
    inner = _within_backward(cut, above)
    shared = ((dq + inner[0]).sum_to_size(cut.q.shape), (dk + inner[1]).sum_to_size(cut.k.shape), dv + inner[2])
    if decays.over is None or inner[3] is None:
        return (*shared, None), grad_before
    whole = decays.over * entering.mul(leaving).sum(-1)
    across = _from_on((cut.q * dq).sum(4)) + _earlier(cut.k * dk) + whole[..., None, :]
    return (*shared, (across if decays.by_feature() else across.sum(-1, keepdim=True)) + inner[3]), grad_before


def _from_on(x: Tensor) -> Tensor:
    """The sum over each token and those after it, of x [...,j,e]."""
    return x.flip(-2).cumsum(-2).flip(-2)


def _earlier(x: Tensor) -> Tensor:
    """The sum over the tokens before each, of x [...,j,e]."""
    return F.pad(x[..., :-1, :].cumsum(-2), (0, 0, 1, 0))


# Inside a chunk.


def _within(cut: RecurrenceChunks) -> Tensor:
    """The contribution of a chunk's keys to its queries' outputs."""
    if cut.log_decay is not None and cut.log_decay.shape[-1] > 1:
        return _by_blocks(cut)
    scores = _weighed(torch.einsum("bkrngie,bkrnje->bkrngij", cut.q, cut.k), cut.log_decay)
    return torch.einsum("bkrngij,bkrnjf->bkrngif", scores, cut.v)


def _within_backward(cut: RecurrenceChunks, above: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of queries, keys, values and the logarithm of the decay by the pairs inside a chunk."""
    if cut.log_decay is not None and cut.log_decay.shape[-1] > 1:
        return _by_blocks_backward(cut, above)
    products = torch.einsum("bkrngie,bkrnje->bkrngij", cut.q, cut.k)
    scores = _weighed(products, cut.log_decay)
    slopes = _weighed(torch.einsum("bkrngif,bkrnjf->bkrngij", above, cut.v), cut.log_decay)
    # Column j of these sums over keys up to j holds, below the diagonal, the pairs that pass token j + 1.
    passing = None if cut.log_decay is None else F.pad(
        (products * slopes).sum(4).cumsum(-1).tril(-1).sum(-2)[..., :-1], (1, 0))[..., None]
    return (torch.einsum("bkrngij,bkrnje->bkrngie", slopes, cut.k),
            torch.einsum("bkrngij,bkrngie->bkrnje", slopes, cut.q),
            torch.einsum("bkrngij,bkrngif->bkrnjf", scores, above), passing)


def _weighed(scores: Tensor, log_decay: Tensor | None) -> Tensor:
    """Scores [b,k,r,n,g,i,j] times the decays from key to query, zero for later keys."""
    if log_decay is None:
        return scores.tril()
    size = log_decay.shape[-2]
    sums = log_decay.expand(*log_decay.shape[:-1], size).tril(-1).cumsum(-2)  # over the tokens after j up to i
    return scores * sums.exp().tril()[..., None, :, :]


def _levels(size: int) -> Iterator[int]:
    """Half the size of the blocks into which a chunk is cut: 1, 2, 4, ... Every pair of a query and an earlier key lies
    in the later and the earlier half of one block of one level."""
    half = 1
    while half < size:
        yield half
        half *= 2


class _Halves(NamedTuple):
    """The halves of a level's blocks: queries of the later half [b,k,r,n,g,h,i,e] and keys and values of the earlier
    one [b,k,r,n,h,j,e or f], both with their decays to the border between the halves, and these decays."""

    q: Tensor
    k: Tensor
    v: Tensor
    into: Tensor
    out: Tensor


def _halves(cut: RecurrenceChunks, half: int) -> _Halves:
    assert cut.log_decay is not None, "blocks are for decays by feature"
    q, k, v, log_decay = (each.unflatten(-2, (-1, 2, half)) for each in (cut.q, cut.k, cut.v, cut.log_decay))
    into, out = _prefix(log_decay[..., 1, :, :]), _suffix(log_decay[..., 0, :, :])
    return _Halves(q[..., 1, :, :] * into[..., None, :, :, :], k[..., 0, :, :] * out, v[..., 0, :, :], into, out)


def _padded(cut: RecurrenceChunks) -> RecurrenceChunks:
    """A chunk of a power of two of tokens; the further ones change nothing."""
    more = (1 << (cut.k.shape[-2] - 1).bit_length()) - cut.k.shape[-2]
    if more == 0 or cut.log_decay is None:
        return cut
    q, k, v, log_decay = (F.pad(each, (0, 0, 0, more)) for each in (cut.q, cut.k, cut.v, cut.log_decay))
    return RecurrenceChunks(q, k, v, log_decay)


def _spread(part: Tensor, later: bool, size: int) -> Tensor:
    """The values of one half of every block, zeros in the other, without the tokens that `_padded` added."""
    both = [torch.zeros_like(part), part] if later else [part, torch.zeros_like(part)]
    return torch.stack(both, -3).flatten(-4, -2)[..., :size, :]


def _by_blocks(cut: RecurrenceChunks) -> Tensor:
    """Decays by feature do not factor out of a product of queries and keys, unless both are taken to a border between
    them: so scores are computed for the two halves of blocks of 2, 4, 8, ... tokens."""
    size, wide = cut.k.shape[-2], _padded(cut)
    y = (cut.q * cut.k[..., None, :, :]).sum(-1, keepdim=True) * cut.v[..., None, :, :]
    for half in _levels(size):
        part = _halves(wide, half)
        scores = torch.einsum("bkrnghie,bkrnhje->bkrnghij", part.q, part.k)
        y = y + _spread(torch.einsum("bkrnghij,bkrnhjf->bkrnghif", scores, part.v), True, size)
    return y


def _by_blocks_backward(cut: RecurrenceChunks, above: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    size, wide = cut.k.shape[-2], _padded(cut)
    score = (cut.q * cut.k[..., None, :, :]).sum(-1, keepdim=True)
    slope = (above * cut.v[..., None, :, :]).sum(-1, keepdim=True)
    dq, dk, dv = slope * cut.k[..., None, :, :], (slope * cut.q).sum(4), (score * above).sum(4)
    passing = torch.zeros_like(dk)  # a query meets its own token's key without a decay
    padded = F.pad(above, (0, 0, 0, wide.k.shape[-2] - size))
    for half in _levels(size):
        part, over = _halves(wide, half), padded.unflatten(-2, (-1, 2, half))[..., 1, :, :]
        scores = torch.einsum("bkrnghie,bkrnhje->bkrnghij", part.q, part.k)
        slopes = torch.einsum("bkrnghif,bkrnhjf->bkrnghij", over, part.v)
        late = torch.einsum("bkrnghij,bkrnhje->bkrnghie", slopes, part.k)
        early = torch.einsum("bkrnghij,bkrnghie->bkrnhje", slopes, part.q)
        dq = dq + _spread(late * part.into[..., None, :, :, :], True, size)
        dk = dk + _spread(early * part.out, False, size)
        dv = dv + _spread(torch.einsum("bkrnghij,bkrnghif->bkrnhjf", scores, over), False, size)
        passing = (passing + _spread(_from_on((part.q * late).sum(4)), True, size)
                   + _spread(_earlier(part.k * early), False, size))
    return dq, dk, dv, passing


class RecurrenceSizes(NamedTuple):
    """The sizes of a call: rows, states of each, heads of the products of queries and keys, query heads of each state,
    and features of a key and of a value."""

    rows: int
    states: int
    scored: int
    group: int
    e: int
    f: int

    @staticmethod
    def of(q: Tensor, k: Tensor, v: Tensor) -> RecurrenceSizes:
        """Those of the arguments of `forward`."""
        rows, states = v.shape[0], v.shape[2]
        shared = q.shape[2] == k.shape[2]
        scored, group = k.shape[2] if shared else states, max(1, q.shape[2] // states)
        return RecurrenceSizes(rows, states, scored, group, q.shape[3], v.shape[3])


def products(sizes: RecurrenceSizes, steps: int, by_feature: bool, *, slopes: bool) -> int:
    """Operations of the matrix products of `forward`, or with ``slopes`` of `backward`.

    Args:
        steps: tokens.
        by_feature: whether decays differ between the features of a key.
    """
    rows, heads, scored, group, e, f = sizes
    total = 0
    for first, end, size in pieces(steps):
        states = [(e, f, size)]
        states += ([(e, f, group * size), (group * size, e, f), (size, e, f), (size, f, e)] if slopes
                   else [(group * size, f, e)])
        if slopes and end < steps:
            states.append((e, f, size))  # once for the state that the next segment begins with
        chunks = rows * ((end - first) // size)
        total += _operations(states, chunks * heads)
        wide = 1 << (size - 1).bit_length()
        squares = [(half, wide // (2 * half)) for half in _levels(size)] if by_feature else [(size, 1)]
        for each, blocks in squares:
            total += _operations([(group * each, each, e)], chunks * blocks * (heads if by_feature else scored))
            inner = ([(group * each, each, f), (group * each, e, each), (each, e, group * each),
                      (each, f, group * each)] if slopes else [(group * each, f, each)])
            total += _operations(inner, chunks * blocks * heads)
    return total


def _operations(shapes: list[tuple[int, int, int]], count: int) -> int:
    """The operations of so many products M x K times K x N, (M, N, K) each; one with K = 1 is an element-wise
    product."""
    return 2 * count * sum(m * n * k for m, n, k in shapes if k > 1)
