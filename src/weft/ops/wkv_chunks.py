"""RWKV-4's decaying mean in plain PyTorch: chunks are scanned side by side, then the state passes from one to the next.

With f_t the logarithm of the factor on the state before token t and g_t the exponent with which the token enters,

    m_t = max(m_{t-1} + f_t, g_t),   a_t = e^{m_{t-1} + f_t - m_t},   b_t = e^{g_t - m_t},
    numerator_t = a_t numerator_{t-1} + b_t v_t,   denominator_t = a_t denominator_{t-1} + b_t

so the two sums are one linear recurrence with the same factors, forward and, for gradients, backward. f_t = w and
g_t = k_t; a token that begins a document has f_t so low that nothing remains, and one that the state does not take has
f_t = 0 and g_t so low that nothing enters. A loop over the tokens of a chunk computes all chunks at once, and another
over chunks passes the state on: in all T / CHUNK + CHUNK steps in place of T, in time and memory linear in T.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

CHUNK = 32
EMPTY = -1e38
"""m of an empty state: e^(m - x) is 0 for every exponent x."""
NEVER = 2 * EMPTY
"""f or g that leaves nothing even beside an empty state."""


class _WkvScan(NamedTuple):
    """For each token the state that it meets and the factors of the one that it leaves.

    Attributes:
        top: m before the token, after its document's beginning has emptied the state.
        kept, entering: a_t and b_t.
        sums: numerator and denominator before the token, emptied likewise.
        after: the state after the last token.
    """

    top: Float[Tensor, "B T D"]
    kept: Float[Tensor, "B T D"]
    entering: Float[Tensor, "B T D"]
    sums: Float[Tensor, "2 B T D"]
    after: Float[Tensor, "B 3 D"]


def forward(k: Float[Tensor, "B T D"], v: Float[Tensor, "B T D"], decay: Float[Tensor, " D"],
            bonus: Float[Tensor, " D"], before: Float[Tensor, "B 3 D"], starts: Bool[Tensor, "B T"] | None,
            valid: Bool[Tensor, "B T"] | None) -> tuple[Tensor, Tensor]:
    """The means and the state after the last token; the arguments are those of `weft.ops.wkv.WKVCall`."""
    scanned = _scanned(k, v, decay, before, starts, valid)
    past, now = _shares(scanned.top, bonus + k)
    over, under = scanned.sums.unbind()
    return (past * over + now * v) / (past * under + now), scanned.after


def backward(dy: Float[Tensor, "B T D"], dafter: Float[Tensor, "B 3 D"], k: Float[Tensor, "B T D"],
             v: Float[Tensor, "B T D"], decay: Float[Tensor, " D"], bonus: Float[Tensor, " D"],
             before: Float[Tensor, "B 3 D"], starts: Bool[Tensor, "B T"] | None,
             valid: Bool[Tensor, "B T"] | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of k, v, decay, bonus and the state before, whose m has none.

    With r_t the gradient of the sums that token t meets, r_t = (that through y_t) + a_t r_{t+1}: the same recurrence,
    from the last token to the first.
    """
    scanned = _scanned(k, v, decay, before, starts, valid)
    past, now = _shares(scanned.top, bonus + k)
    over, under = scanned.sums.unbind()
    whole = past * under + now
    y = (past * over + now * v) / whole
    slope = dy / whole
    own = now * slope * (v - y)
    through = torch.stack([past * slope, -past * slope * y])
    last = dafter[:, :2].transpose(0, 1)
    met = _recurrence(scanned.kept.flip(1), through.flip(2), last).flip(2)
    left = torch.cat([met[:, :, 1:], last[:, :, None]], 2)
    entered = scanned.entering * (left[0] * v + left[1])
    faded = scanned.kept * (left * scanned.sums).sum(0)
    faded = faded if valid is None else faded * valid[..., None]
    dbefore = torch.cat([met[:, :, 0].transpose(0, 1), torch.zeros_like(before[:, 2:])], 1)
    return own + entered, now * slope + scanned.entering * left[0], faded.sum((0, 1)), own.sum((0, 1)), dbefore


def _shares(top: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """The exponentials of both exponents, divided by the larger."""
    most = torch.maximum(top, own).detach()
    return (top - most).exp(), (own - most).exp()


def _scanned(k: Tensor, v: Tensor, decay: Tensor, before: Tensor, starts: Tensor | None,
             valid: Tensor | None) -> _WkvScan:
    factor, exponent = decay.expand_as(k), k
    if valid is not None:
        factor, exponent = factor.masked_fill(~valid[..., None], 0), k.masked_fill(~valid[..., None], NEVER)
    if starts is not None:
        factor = factor.masked_fill(starts[..., None], NEVER)
    with torch.no_grad():
        first = before[:, 2]
        tops = _maxima(factor, exponent, first)
        met = torch.cat([first[:, None], tops[:, :-1]], 1)
    kept, entering = (met + factor - tops).exp(), (exponent - tops).exp()
    earlier = before[:, :2].transpose(0, 1)
    sums = _recurrence(kept, torch.stack([entering * v, entering]), earlier)
    after = torch.cat([sums[:, :, -1].transpose(0, 1), tops[:, -1:]], 1)
    sums = torch.cat([earlier[:, :, None], sums[:, :, :-1]], 2)
    if starts is not None:
        met, sums = met.masked_fill(starts[..., None], EMPTY), sums.masked_fill(starts[..., None], 0)
    return _WkvScan(met, kept, entering, sums, after)


def _in_chunks(x: Float[Tensor, "... T D"], fill: float) -> tuple[Tensor, ...]:
    """The tokens at each place of all chunks, [..., chunks, D], CHUNK of them or, of a shorter row, all."""
    steps = x.shape[-2]
    size = min(CHUNK, steps)
    x = F.pad(x, (0, 0, 0, -steps % size), value=fill) if steps % size else x
    return torch.unflatten(x, -2, (-1, size)).unbind(-2)


def _joined(places: list[Tensor], steps: int) -> Tensor:
    return torch.stack(places, -2).flatten(-3, -2)[..., :steps, :]


def _maxima(factor: Tensor, exponent: Tensor, first: Tensor) -> Tensor:
    """m_t for all tokens from ``first`` [B,D]."""
    factors, exponents = _in_chunks(factor, 0), _in_chunks(exponent, NEVER)
    within, faded = [exponents[0]], [factors[0]]
    for added, own in zip(factors[1:], exponents[1:], strict=True):
        within.append(torch.maximum(within[-1] + added, own))
        faded.append(faded[-1] + added)
    carried = [first]
    for last, whole in zip(within[-1].unbind(1)[:-1], faded[-1].unbind(1)[:-1], strict=True):
        carried.append(torch.maximum(carried[-1] + whole, last))
    into = torch.stack(carried, 1)
    return _joined([torch.maximum(own, into + whole) for own, whole in zip(within, faded, strict=True)],
                   factor.shape[1])


def _recurrence(kept: Float[Tensor, "B T D"], entering: Float[Tensor, "2 B T D"],
                first: Float[Tensor, "2 B D"]) -> Float[Tensor, "2 B T D"]:
    """s_t = kept_t s_{t-1} + entering_t for all tokens from ``first``."""
    factors, terms = _in_chunks(kept, 1), _in_chunks(entering, 0)
    within, products = [terms[0]], [factors[0]]
    for factor, term in zip(factors[1:], terms[1:], strict=True):
        within.append(torch.addcmul(term, factor, within[-1]))
        products.append(products[-1] * factor)
    carried = [first]
    for last, whole in zip(within[-1].unbind(2)[:-1], products[-1].unbind(1)[:-1], strict=True):
        carried.append(torch.addcmul(last, whole, carried[-1]))
    into = torch.stack(carried, 2)
    return _joined([torch.addcmul(own, whole, into) for own, whole in zip(within, products, strict=True)],
                   kept.shape[1])
