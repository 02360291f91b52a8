"""The selective scan: a diagonal linear recurrence for every channel whose step, input and output maps each token sets.

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,   y_t = C_t h_t          h [N] for each of D channels

(Gu & Dao 2023, algorithm 2 and section 3.3.2; A is discretised by zero-order hold and B by Euler's rule, as in the
released code.) A [N,D] is at most 0, so that the state decays; a step dt of 0 leaves the state as it is. All of it is
computed in float32 or better. States are [B,N,D] with the channels last, so that the channels of one state lie side by
side.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from weft.core.pieces import Pieces
from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation
from weft.ops.selective_scan_chunks import CHUNK, Scanned, SelectiveScanCall, backward_flops, forward_flops, scan, steps


def state_before(pieces: Pieces, call: SelectiveScanCall) -> Float[Tensor, "B N D"]:
    """The state before the piece of this call, of rows that are cut among processes; the call has that before the
    row."""
    factor = torch.mul(call.a, call.dt.sum(1, keepdim=True)).exp()
    if call.starts is not None:
        factor = factor.masked_fill(call.starts.any(1)[:, None, None], 0)
    _, update = SELECTIVE_SCAN(call._replace(before=torch.zeros_like(call.before)))
    return pieces.entering(call.before, factor, update)


def _step(call: SelectiveScanCall) -> Scanned:
    u, dt, a, b, c, before, starts = call
    decay = torch.mul(a, dt).exp()  # [B,N,D], from [N,D] and [B,1,D]
    kept = before if starts is None else before.masked_fill(starts[..., None], 0)
    after = torch.addcmul(b.transpose(1, 2) * (dt * u), decay, kept)
    return c @ after, after


def _one(call: SelectiveScanCall) -> str | None:
    return None if call.u.shape[1] == 1 else "several tokens"


def _examples(make: Make) -> Iterator[SelectiveScanCall]:
    for number, states, channels in ((1, 3, 5), (7, 1, 3), (CHUNK + 5, 2, 67)):
        starts = ((torch.arange(number)[None] + torch.arange(2)[:, None]) % 5 == 2).contiguous()
        for places in (None, starts):
            yield SelectiveScanCall(make(2, number, channels), make(2, number, channels).square(),
                                    -make(states, channels).exp(), make(2, number, states), make(2, number, states),
                                    make(2, states, channels), places)


SELECTIVE_SCAN = OPERATIONS.add(Operation(
    "selective_scan", "the selective state-space recurrence over a chunk",
    Form(REFERENCE, steps, "step by step", known_as=("steps",)),
    Form("step", _step, "one token", serves=_one),
    LateForm("native", "weft.ops.native_selective_scan.SCAN"),
    LateForm("triton", "weft.ops.triton.selective_scan.FORM", "cuda"),
    Form("operator", scan, "chunks of 32 tokens, as one operator", transformed=False,
         flops={"weft.selective_scan": forward_flops, "weft.selective_scan_backward": backward_flops}),
    subject="u", examples=_examples, known_as=("mamba", "s6", "pscan")))
