"""The selective scan by PyTorch's operators: token by token, and in chunks as one operator with its own backward pass.

Numbers for every token, state and channel, [B,N,D] each, exist for one chunk at a time. The forward pass stores the
state before each chunk; the backward pass computes the states within a chunk again from it. So memory is linear in the
tokens, with N / 32 numbers a token and channel besides the arguments and results.

The gradient of a state is g_t = C_t dy_t + exp(dt_{t+1} A) g_{t+1}; from it and h_{t-1}, with p_t = g_t exp(dt_t A)
h_{t-1}, follow those of dt (p A + g B u), A (p dt), B (g dt u), C (dy h) and u (g B dt).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from weft.ops.operator import differentiable

CHUNK = 32
"""Tokens whose states are computed together, here and in native/selective_scan.h."""

Scanned = tuple[Tensor, Tensor]
"""Outputs [B,T,D] and the state after the last token, [B,N,D]."""


class SelectiveScanCall(NamedTuple):
    """One call of at least one token.

    Attributes:
        dt: steps, at least 0; 0 for a token that must not enter the state.
        a: A, at most 0.
        b, c: B and C of every token.
        before: the state before the first token.
        starts: where the state is cleared before the token; None: nowhere.
    """

    u: Float[Tensor, "B T D"]
    dt: Float[Tensor, "B T D"]
    a: Float[Tensor, "N D"]
    b: Float[Tensor, "B T N"]
    c: Float[Tensor, "B T N"]
    before: Float[Tensor, "B N D"]
    starts: Bool[Tensor, "B T"] | None


def steps(call: SelectiveScanCall) -> Scanned:
    """The recurrence as it is written."""
    u, dt, a, b, c, state, starts = call
    decays = (dt[:, :, None] * a).exp()
    if starts is not None:
        decays = decays.masked_fill(starts[..., None, None], 0)
    entering, outputs = b[..., None] * (dt * u)[:, :, None], []
    for decay, enters, reads in zip(decays.unbind(1), entering.unbind(1), c.unbind(1), strict=True):
        state = decay * state + enters
        outputs.append((reads[:, None] @ state)[:, 0])
    return torch.stack(outputs, 1), state


def scan(call: SelectiveScanCall) -> Scanned:
    """The recurrence in chunks, as one operator."""
    u, dt, a, b, c, before, starts = call
    y, after, _ = _forward(u, dt, a, b, c, before, starts, torch.is_grad_enabled())
    return y, after


class _Chunk(NamedTuple):
    """A chunk's tokens, time first: steps and inputs [Q,B,1,D], what enters the state for an input of 1 [Q,B,N,1], what
    reads it [Q,B,1,N], and the decays [Q,B,N,D]."""

    dt: Tensor
    u: Tensor
    b: Tensor
    c: Tensor
    decays: Tensor


def _chunk(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, starts: Tensor | None, first: int) -> _Chunk:
    place = slice(first, first + CHUNK)
    step, enters, reads = (x[:, place].transpose(0, 1) for x in (dt, b, c))
    decays = (step[:, :, None] * a).exp_()
    if starts is not None:
        decays.masked_fill_(starts[:, place].t()[..., None, None], 0)
    return _Chunk(step[:, :, None], u[:, place].transpose(0, 1)[:, :, None], enters[..., None], reads[:, :, None],
                  decays)


def _states(chunk: _Chunk, before: Tensor) -> Tensor:
    """[Q+1,B,N,D]: the state before the chunk and after each of its tokens."""
    every = before.new_empty(len(chunk.decays) + 1, *before.shape)
    every[0] = before
    torch.mul(chunk.b, chunk.dt * chunk.u, out=every[1:])
    places = every.unbind(0)
    for decay, earlier, state in zip(chunk.decays.unbind(0), places, places[1:], strict=False):
        state.addcmul_(decay, earlier)
    return every


def _run(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, before: Tensor, starts: Tensor | None,
         keeps: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the state after them, and for the backward pass the state before each chunk, [T/32,B,N,D]."""
    y, state, kept = u.new_empty(u.shape), before, []
    for first in range(0, u.shape[1], CHUNK):
        kept += [state] if keeps else []
        chunk = _chunk(u, dt, a, b, c, starts, first)
        every = _states(chunk, state)
        y[:, first:first + CHUNK] = (chunk.c @ every[1:])[:, :, 0].transpose(0, 1)
        state = every[-1].clone()  # a view would keep the states of the whole chunk
    return y, state, torch.stack(kept) if keeps else u.new_empty(0)


def forward_shapes(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, before: Tensor, starts: Tensor | None,
                   keeps: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The shapes of an operator's results."""
    return u.new_empty(u.shape), before.new_empty(before.shape), u.new_empty(kept_shape(before, u.shape[1], keeps))


def kept_shape(before: Tensor, steps: int, keeps: bool) -> tuple[int, ...]:
    """The shape of the states that the forward pass stores for the backward pass."""
    return (-(-steps // CHUNK), *before.shape) if keeps else (0,)


def _run_backward(dy: Tensor, dafter: Tensor, u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, before: Tensor,
                  starts: Tensor | None, keeps: bool,
                  kept: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of u, dt, a, b, c and of the state before."""
    du, ddt, db, dc = (x.new_empty(x.shape) for x in (u, dt, b, c))
    da, carried = torch.zeros_like(a), dafter
    for index in reversed(range(len(kept))):
        first = CHUNK * index
        chunk = _chunk(u, dt, a, b, c, starts, first)
        above = dy[:, first:first + CHUNK].transpose(0, 1)[:, :, None]  # [Q,B,1,D]
        every, slopes = _states(chunk, kept[index]), chunk.c.transpose(2, 3) * above
        carried = _carry_back(slopes, chunk.decays, carried)
        inner = slice(first, first + CHUNK)
        dc[:, inner] = (every[1:] @ above.transpose(2, 3))[..., 0].transpose(0, 1)
        db[:, inner] = (slopes @ (chunk.dt * chunk.u).transpose(2, 3))[..., 0].transpose(0, 1)
        entering = chunk.b.transpose(2, 3) @ slopes  # of dt u, [Q,B,1,D]
        du[:, inner] = (entering * chunk.dt)[:, :, 0].transpose(0, 1)
        through = slopes.mul_(chunk.decays).mul_(every[:-1])  # of dt a
        da += (through * chunk.dt).sum((0, 1))
        ddt[:, inner] = (entering * chunk.u)[:, :, 0].add_(through.mul_(a).sum(2)).transpose(0, 1)
    return du, ddt, da, db, dc, carried


def _carry_back(slopes: Tensor, decays: Tensor, carried: Tensor) -> Tensor:
    """Add to each token's gradient of the state, in place, that of the tokens after it; return the gradient of the
    state before the chunk."""
    for slope, decay in zip(reversed(slopes.unbind(0)), reversed(decays.unbind(0)), strict=True):
        carried = slope.add_(carried) * decay
    return carried


def stepped(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, before: Tensor, starts: Tensor | None,
            keeps: bool) -> Scanned:
    """`steps` of the arguments of an operator."""
    return steps(SelectiveScanCall(u, dt, a, b, c, before, starts))


_forward = differentiable("selective_scan", _run, forward_shapes, _run_backward, stepped, 6, keeps=True)


def forward_flops(u: Tensor, dt: Tensor, a: Tensor, *_: Any) -> int:
    """The products B (dt u) and C h of every token and channel; decays are element-wise."""
    return 4 * u.numel() * a.shape[0]


def backward_flops(dy: Tensor, dafter: Tensor, u: Tensor, dt: Tensor, a: Tensor, *_: Any) -> int:
    """The states again, then C dy and the gradients of B, C and dt u."""
    return 10 * u.numel() * a.shape[0]
