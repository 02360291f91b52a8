"""The selective scan as it stands in Mamba's block: its steps by a softplus, its outputs with a skip and under a gate.

    dt_t = softplus(step_t + bias),  h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,  y_t = (C_t h_t + skip u_t) silu(gate_t)

(Gu & Dao 2023, algorithm 2 and section 3.4.) Everything around the scan works on each number by itself, so that on a
processor reading and writing it takes longer than its arithmetic; the form in C keeps it in the cache, and for its
backward pass stores the arguments and one state a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from weft.core.pieces import Pieces
from weft.ops import native_selective_scan as native
from weft.ops.few_rows import unavailable
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.gated_product import gated_product
from weft.ops.native.library import why_not
from weft.ops.native_selective_scan import GatedScanCall
from weft.ops.native_states import native_scan_token
from weft.ops.native_token import DTYPES
from weft.ops.operator import widen
from weft.ops.selective_scan import SELECTIVE_SCAN, state_before
from weft.ops.selective_scan_chunks import CHUNK, Scanned


def gated_scan(call: GatedScanCall, valid: Bool[Tensor, "B T"] | None = None,
               pieces: Pieces | None = None) -> Scanned:
    """The outputs [B,T,D], in the dtype of the gate, and the state after the chunk [B,N,D], in float32 or better.

    Args:
        call: in any dtypes.
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


def _in_c(call: GatedScanCall) -> Scanned:
    return native.gated_scan(call)


def _token(call: GatedScanCall) -> Scanned:
    starts = None if call.starts is None else call.starts.contiguous()
    y, after = native_scan_token(*call[:3], call.a.contiguous(), *call[4:9], starts)
    return y, after


def _beyond_token(call: GatedScanCall) -> str | None:
    """Why C cannot serve one token."""
    if call.u.shape[1] != 1:
        return "several tokens"
    if any(each.dtype != torch.float32 for each in (*call[1:7], call.before)) or call.gate.dtype not in DTYPES:
        return "its tensors are of several dtypes"
    return "there are no rows" if call.u.numel() == 0 else unavailable()


def _beyond_native(call: GatedScanCall) -> str | None:
    """Why C cannot serve."""
    if any(each.dtype != call.u.dtype for each in call[:9] if each is not None):
        return "its tensors are of several dtypes"
    return why_not()


def _unforced(call: GatedScanCall) -> str | None:
    return "the form of its scan is named" if SELECTIVE_SCAN.forced else None


def _free(call: GatedScanCall) -> str | None:
    return _unforced(call) or ("one token" if call.u.shape[1] == 1 else None)


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
    Form(REFERENCE, native.written_out, "step by step"),
    Form("token", _token, "one token in C", devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}),
         gradients="without", compiled=False, transformed=False, serves=_beyond_token, worth=_unforced,
         flops={"weft.native_scan_token": native.gated_flops}),
    Form("native", _in_c, "chunks of 32 tokens in C, all in one pass", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.float32}), transformed=False, serves=_beyond_native, worth=_free,
         flops={"weft.native_gated_scan": native.gated_flops,
                "weft.native_gated_scan_backward": native.gated_backward_flops}, known_as=("c",)),
    Form("parts", _parts, "the scan by the form that is chosen for it, and operators around it"),
    subject="u", examples=_examples, known_as=("mamba_block", "selective_gate")))
