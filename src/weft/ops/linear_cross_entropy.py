"""The cross-entropy of a linear readout, summed over tokens, with its gradients computed in the forward pass.

    z = softcap(W h + b),   log Z = logsumexp(z),   p = softmax(z)
    loss = sum over scored tokens of (1 - s) (log Z - z_y) + s (log Z - mean(z)) + c (log Z)^2

s is label smoothing (Szegedy et al. 2016, section 7), c the weight of the z-loss (Chowdhery et al. 2022, section 5).
Tokens are processed in pieces whose logits fit a cache. As the loss is one number, a piece's gradient

    dloss/dz = p (1 + 2 c log Z) - (1 - s) onehot(y) - s / V

follows from its logits, and only its products with W and h are kept: logits are computed once and never held for all
tokens (the idea of Hsu et al. 2024, Liger Kernel, section 3.2; Wijmans et al. 2024). A product for a gradient that is
not needed, such as that of a frozen W, is not computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from weft.core.errors import UnsupportedError
from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation
from weft.ops.linear import widens
from weft.ops.linear_log_prob import capped, linear_logits
from weft.ops.operator import Kernel, differentiate, operator
from weft.ops.products import forward_product, input_product, weight_product

PIECE_ENTRIES = 1 << 22
"""Logits held at once, 16 MiB in float32: products that are large enough, and little beside what a model keeps."""


CONVERTED = 1 << 17
"""Entries of a gradient that are converted at once while it is added: few enough for a processor's cache."""


class CrossEntropy(NamedTuple):
    """Sums over the scored tokens, in nats.

    Attributes:
        nats: plain negative log-likelihood, without a gradient.
        loss: what is differentiated: smoothed, and with the z-loss.
        by_row: ``nats`` of each row; None: not known.
    """

    nats: Float[Tensor, ""]
    loss: Float[Tensor, ""]
    by_row: Float[Tensor, " B"] | None = None


class CrossEntropyCall(NamedTuple):
    """The arguments of `linear_cross_entropy`."""

    h: Float[Tensor, "B T D"]
    weight: Float[Tensor, "V D"]
    bias: Float[Tensor, " V"] | None
    targets: Int64[Tensor, "B T"]
    scored: Bool[Tensor, "B T"]
    softcap: float | None = None
    smoothing: float = 0.0
    z_loss: float = 0.0
    piece_entries: int | None = None


def linear_cross_entropy(h: Float[Tensor, "B T D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, " V"] | None,
                         targets: Int64[Tensor, "B T"], scored: Bool[Tensor, "B T"], *, softcap: float | None = None,
                         smoothing: float = 0.0, z_loss: float = 0.0,
                         piece_entries: int | None = None) -> CrossEntropy:
    """The two sums over ``scored`` tokens; softmax and sums in float32 or better, and so is the gradient of ``weight``
    while pieces are added to it. It can be differentiated once; under transforms of `torch.func` it is the plain sum of
    all tokens at once, which has every derivative.

    Args:
        targets: token ids.
        scored: tokens that count.
        softcap: c in c tanh(z / c).
        smoothing: share of the target that is spread evenly over the vocabulary.
        z_loss: weight of (log Z)^2.
        piece_entries: logits held at once; a piece is never less than one token. None: as many as suit the device.
    """
    return CROSS_ENTROPY(CrossEntropyCall(h, weight, bias, targets, scored, softcap, smoothing, z_loss, piece_entries))


def _pieces(call: CrossEntropyCall) -> CrossEntropy:
    return summed(_summed, call, PIECE_ENTRIES)


def summed(sums: Kernel, call: CrossEntropyCall, entries: int) -> CrossEntropy:
    """The result of an operator that `declared` returned, with so many logits at once where the call gives none."""
    h, weight, bias, targets, scored, softcap, smoothing, z_loss, piece_entries = call
    needed = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in (h, weight, bias)]
    step = max(1, (piece_entries or entries) // weight.shape[0])
    nats, loss, *_ = sums(h.flatten(0, -2), weight, bias, targets.flatten(), scored.flatten(), softcap, smoothing,
                          z_loss, step, *needed)
    by_row = nats.detach().view(targets.shape).sum(-1)
    return CrossEntropy(by_row.sum(), loss, by_row)


def _at_once(call: CrossEntropyCall) -> CrossEntropy:
    """Both sums, from all logits."""
    targets, scored, smoothing, z_loss = call.targets, call.scored, call.smoothing, call.z_loss
    z = linear_logits(call.h, call.weight, call.bias, call.softcap)
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    log_z = z.logsumexp(-1)
    nats = log_z - z.gather(-1, targets[..., None])[..., 0]
    own = (1 - smoothing) * nats + smoothing * (log_z - z.mean(-1)) + z_loss * log_z.square()
    by_row = torch.where(scored, nats, 0.0).detach().sum(-1)
    return CrossEntropy(by_row.sum(), torch.where(scored, own, 0.0).sum(), by_row)


def _kernel(h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scored: Tensor, softcap: float | None,
            smoothing: float, z_loss: float, step: int, dh_needed: bool, dweight_needed: bool,
            dbias_needed: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    nats, loss, dh, dweight, dbias = results(h, weight, bias, dh_needed, dweight_needed, dbias_needed)
    if widens(h):
        h, weight, bias = h.float(), weight.float(), None if bias is None else bias.float()
    # One tensor for all pieces: new ones are fetched from the system page by page, which takes several times as long as
    # the arithmetic on them.
    p = torch.empty(min(step, h.shape[0]), weight.shape[0], dtype=nats.dtype, device=h.device)
    z_wide: Tensor | None = None
    for start in range(0, h.shape[0], step):
        rows = slice(start, start + step)
        logits = capped(forward_product(h[rows], weight, bias), softcap)
        if logits.dtype == nats.dtype:
            z = logits
        else:  # the dtype of the vectors, or that of autocast, in which products are taken then
            z_wide = torch.empty_like(p) if z_wide is None else z_wide
            z = z_wide[:len(logits)].copy_(logits)
        p, log_z = _softmax(z, p[:len(z)])
        goals, counts = targets[rows, None], scored[rows, None].to(h.dtype)
        plain = log_z - z.gather(1, goals)[:, 0]
        own = plain
        if smoothing:
            own = (1 - smoothing) * plain + smoothing * (log_z - z.mean(1))
        if z_loss:
            own = own + z_loss * log_z.square()
        nats[rows] = torch.where(scored[rows], plain, 0.0)
        loss += torch.where(scored[rows], own, 0.0).sum()
        if dh_needed or dweight_needed or dbias_needed:
            dz = _through_cap(_dlogits(p, log_z, goals, smoothing, z_loss), z, softcap)
            if dz.dtype != h.dtype:
                dz = logits.copy_(dz) if logits.dtype == h.dtype else dz.to(h.dtype)
            if dh_needed:
                torch.mul(input_product(dz, weight), counts, out=dh[rows])
            if dweight_needed:
                _add(dweight, weight_product(dz, h[rows] * counts))
            if dbias_needed:
                dbias += (counts.t() @ dz)[0]
    return nats, loss, dh, dweight, dbias


def _softmax(z: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax, written into ``p``, and log Z from its largest entry, which is at least 1/V, so that its logarithm
    is exact."""
    torch.softmax(z, 1, out=p)
    return p, z.amax(1) - p.amax(1).log()


def _add(total: Tensor, part: Tensor) -> None:
    """Adds ``part`` to ``total``, which may be wider: some rows at a time, because it is converted on the way."""
    some = max(1, CONVERTED // max(1, total.shape[1]))
    for into, more in zip(total.split(some), part.split(some), strict=True):
        into += more


def _dlogits(p: Tensor, log_z: Tensor, goals: Tensor, smoothing: float, z_loss: float) -> Tensor:
    """The gradient of the capped logits, written into ``p``."""
    if z_loss:
        p.mul_((1 + 2 * z_loss * log_z)[:, None])
    if smoothing:
        p.sub_(smoothing / p.shape[1])
    return p.scatter_add_(1, goals, p.new_full((1, 1), smoothing - 1).expand_as(goals))


def _through_cap(dz: Tensor, z: Tensor, softcap: float | None) -> Tensor:
    """The gradient before the cap: the slope of c tanh(x / c) is 1 - (z / c)^2. Both arguments are overwritten."""
    return dz if softcap is None else dz.mul_(z.div_(softcap).square_().neg_().add_(1))


def results(h: Tensor, weight: Tensor, bias: Tensor | None, dh_needed: bool, dweight_needed: bool,
            dbias_needed: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Zeros for the nats of each token and the sum of the loss, and tensors for the gradients of h, the matrix and the
    bias, empty where not needed."""
    wide = torch.promote_types(h.dtype, torch.float32)
    nats, loss = (torch.zeros(shape, dtype=wide, device=h.device) for shape in (h.shape[:1], ()))
    dh = torch.empty_like(h) if dh_needed else h.new_empty(0)
    dweight = torch.zeros_like(weight, dtype=wide) if dweight_needed else h.new_empty(0)
    dbias = torch.zeros_like(bias, dtype=wide) if dbias_needed and bias is not None else h.new_empty(0)
    return nats, loss, dh, dweight, dbias


def _shapes(h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scored: Tensor, softcap: float | None,
            smoothing: float, z_loss: float, step: int, dh_needed: bool, dweight_needed: bool,
            dbias_needed: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return results(h, weight, bias, dh_needed, dweight_needed, dbias_needed)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.kinds = [x.dtype if wanted else None for x, wanted in zip(inputs[:3], inputs[-3:], strict=True)]
    ctx.save_for_backward(*output[2:])


def _gradient(ctx: Any, _nats: Tensor | None, dloss: Tensor | None, *twice: Tensor | None) -> tuple[Tensor | None, ...]:
    if any(x is not None for x in twice):
        raise UnsupportedError("the fused cross-entropy has no second derivatives.", where="linear_cross_entropy",
                               remedy="Differentiate `linear_log_prob`.")
    # Not dloss.to(x.dtype): one over the count of tokens, rounded to bfloat16, would be wrong by up to 0.4 % for all.
    scaled = [None if kind is None or dloss is None else (x * dloss).to(kind)
              for x, kind in zip(ctx.saved_tensors, ctx.kinds, strict=True)]
    return (*scaled, *[None] * 9)


def declared(name: str, kernel: Kernel) -> Kernel:
    """The operator of a kernel with the arguments and results of `_kernel`, and its backward pass."""
    found = operator(name, kernel, _shapes)
    differentiate(name, _gradient, _save)
    return found


_summed = declared("linear_cross_entropy", _kernel)


def flops(h: Tensor, weight: Tensor, *others: Any) -> int:
    """The logits, and the gradients of h and of the matrix where they are needed."""
    products = 1 + sum(map(bool, others[-3:-1]))
    return 2 * h.shape[0] * weight.numel() * products


def _examples(make: Make) -> Iterator[CrossEntropyCall]:
    for bias, softcap, smoothing, z_loss in ((None, None, 0.0, 0.0), (make(11), 3.0, 0.1, 0.01)):
        for entries in (PIECE_ENTRIES, 22):  # all tokens together, and two at a time
            targets = torch.arange(14).view(2, 7) % 11
            yield CrossEntropyCall(make(2, 7, 5), make(11, 5), bias, targets, targets % 4 != 3, softcap, smoothing,
                                   z_loss, entries)


CROSS_ENTROPY = OPERATIONS.add(Operation(
    "cross_entropy", "the cross-entropy of a linear readout",
    Form(REFERENCE, _at_once, "all logits at once"), LateForm("triton", "weft.ops.triton.cross_entropy.FORM", "cuda"),
    Form("pieces", _pieces, "some tokens at a time, gradients in forward", transformed=False,
         flops={"weft.linear_cross_entropy": flops}, known_as=("fused", "chunked")),
    subject="h", examples=_examples, known_as=("loss", "linear_cross_entropy")))
