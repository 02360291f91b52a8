"""The selective scan as it stands in Mamba's block: its steps by a softplus, its outputs with a skip and under a gate.

    dt_t = softplus(step_t + bias),  h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,  y_t = (C_t h_t + skip u_t) silu(gate_t)

(Gu & Dao 2023, algorithm 2 and section 3.4.) Everything around the scan works on each number by itself, so that on a
processor reading and writing it takes longer than its arithmetic; the form in C keeps it in the cache, and for its
backward pass stores the arguments and one state a chunk.

The selective scan: a diagonal linear recurrence for every channel whose step, input and output maps each token sets.

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,   y_t = C_t h_t          h [N] for each of D channels

(Gu & Dao 2023, algorithm 2 and section 3.3.2; A is discretised by zero-order hold and B by Euler's rule, as in the
released code.) A [N,D] is at most 0, so that the state decays; a step dt of 0 leaves the state as it is. All of it is
computed in float32 or better. States are [B,N,D] with the channels last, so that the channels of one state lie side by
side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from weft.core.pieces import Pieces
from weft.ops.activations import gated_product
from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation
from weft.ops.operator import widen
from weft.ops.selective_scan_chunks import CHUNK, Scanned, SelectiveScanCall, backward_flops, forward_flops, scan, steps


class GatedScanCall(NamedTuple):
    """One call of at least one token: y = (C h + skip u) silu(gate), h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,
    dt = softplus(step + bias).

    Attributes:
        u: inputs, in float32 or better, as is all but the gate.
        step: before the bias and the softplus; -inf for a token that must not enter the state.
        a: A, at most 0.
        b, c: B and C of every token.
        skip: how much of the input is added to the output.
        gate: in the dtype of the result.
        before: the state before the first token.
        starts: where the state is cleared before the token; None: nowhere.
    """

    u: Float[Tensor, "B T D"]
    step: Float[Tensor, "B T D"]
    bias: Float[Tensor, " D"]
    a: Float[Tensor, "N D"]
    b: Float[Tensor, "B T N"]
    c: Float[Tensor, "B T N"]
    skip: Float[Tensor, " D"]
    gate: Float[Tensor, "B T D"]
    before: Float[Tensor, "B N D"]
    starts: Bool[Tensor, "B T"] | None

    def scan(self) -> SelectiveScanCall:
        """The scan in it."""
        dt = torch.nn.functional.softplus(self.step + self.bias)
        return SelectiveScanCall(self.u, dt, self.a, self.b, self.c, self.before, self.starts)

    def gated(self, y: Tensor) -> Tensor:
        """The result for outputs of the scan, by the formula."""
        return ((y + self.skip * self.u) * torch.nn.functional.silu(self.gate.to(y.dtype))).to(self.gate.dtype)


def written_out(call: GatedScanCall) -> Scanned:
    """All of it as it is written, token by token."""
    y, after = steps(call.scan())
    return call.gated(y), after


def gated_scan(call: GatedScanCall, valid: Bool[Tensor, "B T"] | None = None, pieces: Pieces | None = None) -> Scanned:
    """The outputs [B,T,D], in the dtype of the gate, and the state after the chunk [B,N,D], in float32 or better.

    Args:
        valid: False for tokens that the state does not take, after a row's last; None: all are taken.
        pieces: of rows that are cut among processes, for which the state before is that before the row.
    """
    u, step, bias, a, b, c, skip = (widen(x) for x in call[:7])
    starts = call.starts
    if valid is not None:
        step = step.masked_fill(~valid[..., None], -torch.inf)
        starts = None if starts is None else starts & valid
    call = GatedScanCall(u, step, bias, a, b, c, skip, call.gate, call.before.to(u.dtype), starts)
    return GATED_SCAN(call if pieces is None else call._replace(before=state_before(pieces, call.scan())))


def _parts(call: GatedScanCall) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"]]:
    y, after = SELECTIVE_SCAN(call.scan())
    return gated_product(call.gate, torch.addcmul(y, call.skip, call.u).to(call.gate.dtype), F.silu), after


def unforced(call: GatedScanCall) -> str | None:
    """Why all of it in one form is not chosen: that of the scan in it is named."""
    return "the form of its scan is named" if SELECTIVE_SCAN.forced else None


def _examples(make: Make) -> Iterator[GatedScanCall]:
    for number, states, channels in ((1, 3, 5), (7, 1, 3), (CHUNK + 5, 5, 67)):
        starts = ((torch.arange(number)[None] + torch.arange(2)[:, None]) % 5 == 2).contiguous()
        gates = make(2, number, 2 * channels)
        for gate, places in ((gates[..., channels:], None), (make(2, number, channels), starts)):
            yield GatedScanCall(make(2, number, channels), 3 * make(2, number, channels), make(channels),
                                -make(states, channels).exp(), make(2, number, states), make(2, number, states),
                                make(channels), gate, make(2, states, channels), places)


GATED_SCAN = OPERATIONS.add(Operation(
    "gated_scan", "the selective scan with the softplus, the skip and the gate around it",
    Form(REFERENCE, written_out, "step by step"),
    LateForm("token", "weft.ops.native_states.TOKEN"), LateForm("native", "weft.ops.native_selective_scan.GATED"),
    Form("parts", _parts, "the scan by the form that is chosen for it, and operators around it"),
    subject="u", examples=_examples, known_as=("mamba_block", "selective_gate")))


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


def _selective_calls(make: Make) -> Iterator[SelectiveScanCall]:
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
    subject="u", examples=_selective_calls, known_as=("mamba", "s6", "pscan")))
