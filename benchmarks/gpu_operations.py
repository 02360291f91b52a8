"""Figures of `gpu.py`: the card itself, and operations by their forms, beside the kernels of other libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from gpu_timing import Figure, Known, both_ways, device, emptied, forward_only, in_turns, why
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.analysis.gpu_speed import card_speed
from weft.core.clock import Keys
from weft.core.span import Span
from weft.masks import Causal, Mask, Window
from weft.masks.visible import MaskFacts, visible
from weft.ops.attention import ATTENTION, AttentionCall
from weft.ops.delta_rule import DeltaRuleCall
from weft.ops.diagonal_recurrence import DiagonalRecurrenceCall
from weft.ops.forms import OPERATIONS, Operation
from weft.ops.linear_recurrence import LinearRecurrenceCall
from weft.ops.selective_scan_chunks import SelectiveScanCall
from weft.ops.short_convolution import ShortConvolutionCall
from weft.ops.wkv import WKVCall
from weft.ops.wkv_chunks import EMPTY
from weft.training.compute import same_bits

Run = Callable[[], Tensor]


def card(tiny: bool, _: Known) -> dict[str, Any]:
    """Rates of products, of a copy, and the times of starting kernels."""
    found = card_speed(device(), **({"size": 64, "copied": 1 << 16, "launches": 5} if tiny else {}))
    return found.to_json()


def attention_call(shape: tuple[int, int, int, int, int], mask: Mask, documents: int = 1,
                   dtype: torch.dtype = torch.bfloat16) -> AttentionCall:
    """Random queries, keys and values of so many rows, tokens, heads, key heads and features."""
    torch.manual_seed(0)
    rows, tokens, heads, groups, size = shape
    where = device()
    q, k, v = (torch.randn(rows, tokens, n, size, device=where, dtype=dtype).requires_grad_()
               for n in (heads, groups, groups))
    span = Span()
    if documents > 1:  # of equal lengths but for a token more or less
        begins = torch.zeros(rows, tokens, dtype=torch.bool, device=where)
        begins[:, [i * tokens // documents for i in range(documents)]] = True
        span = Span(begins=begins)
    ticks = span.resolve(None, q)
    seen = visible(MaskFacts.of(mask, heads), Keys.of(ticks.ticks), ticks)
    return AttentionCall(q, k, v, size**-0.5, seen)


def attention_runs(call: AttentionCall, named: tuple[str, ...] = ()) -> dict[str, Run]:
    """Weft as it chooses, every form that serves the call, and PyTorch's kernels called without Weft."""
    forms = [form.name for form in ATTENTION.forms() if form.name in named or (
        not named and form.name not in ("reference", "banded") and ATTENTION.can(form, call))]
    runs: dict[str, Run] = {"as chosen": lambda: ATTENTION(call)}
    runs |= {name: (lambda name=name: ATTENTION(call, name)) for name in forms}
    if call.visible.causal:
        for kernel in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
            runs[f"PyTorch {kernel.split('_')[0].lower()}"] = bare(call, getattr(SDPBackend, kernel))
    return runs


def bare(call: AttentionCall, kernel: SDPBackend) -> Run:
    """PyTorch's function alone, by one of its kernels."""
    q, k, v = (x.transpose(1, 2) for x in (call.q, call.k, call.v))

    def run() -> Tensor:
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=call.scale,
                                                  enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)

    return run


def attention_report(calls: Mapping[str, AttentionCall], seconds: float) -> dict[str, Any]:
    """Milliseconds of each call, by form: forward, with gradients, and with gradients of the same bits."""
    report: dict[str, Any] = {}
    for name, call in calls.items():
        runs, leaves = attention_runs(call), [call.q, call.k, call.v]
        report[name] = {"chosen": ATTENTION.choose(call).form.name,
                        "forward ms": in_turns({each: forward_only(run) for each, run in runs.items()},
                                               seconds=seconds),
                        "forward and backward ms": in_turns({each: both_ways(run, leaves)
                                                             for each, run in runs.items()}, seconds=seconds),
                        "the same bits, forward and backward ms": in_turns({
                            each: both_ways(run, leaves, same_bits) for each, run in runs.items()}, seconds=seconds)}
        emptied()
    return report


def attention_of_gpt2(tiny: bool, _: Known) -> dict[str, Any]:
    """Causal attention in the shapes of GPT-2 124M and of Llama 1B."""
    shapes = {"tiny": (1, 16, 2, 1, 8)} if tiny else {"GPT-2 124M": (16, 1024, 12, 12, 64),
                                                     "Llama 1B": (4, 2048, 32, 8, 64)}
    return attention_report({name: attention_call(shape, Causal()) for name, shape in shapes.items()}, 0.3)


def attention_of_documents(tiny: bool, _: Known) -> dict[str, Any]:
    """Rows in which several documents lie."""
    shape = (1, 16, 2, 2, 8) if tiny else (16, 1024, 12, 12, 64)
    return attention_report({"four documents a row": attention_call(shape, Causal(), 4)}, 0.3)


def attention_of_windows(tiny: bool, _: Known) -> dict[str, Any]:
    """A window of 512 in 32k tokens against dense causal attention, in turns; their ratio."""
    shape, width = ((1, 32, 2, 2, 8), 4) if tiny else ((1, 32768, 12, 12, 64), 512)
    window, dense = attention_call(shape, Window(width)), attention_call(shape, Causal())
    small = {form.name for form in ATTENTION.forms()} - {"reference", "sdpa"}  # whose mask takes 32k x 32k bytes
    forms = tuple(form.name for form in ATTENTION.forms() if form.name in small and ATTENTION.can(form, window))
    runs = {f"window, {name}": (run, window) for name, run in attention_runs(window, forms or ("banded",)).items()}
    runs["dense, as chosen"] = (lambda: ATTENTION(dense)), dense
    report: dict[str, Any] = {"chosen for the window": ATTENTION.choose(window).form.name}
    for name, within in (("forward and backward ms", None), ("the same bits, forward and backward ms", same_bits)):
        contenders = {each: both_ways(run, [call.q, call.k, call.v], **({} if within is None else {"within": within}))
                      for each, (run, call) in runs.items()}
        taken = in_turns(contenders, seconds=1.0)
        ratio = ratio_of(taken, "dense, as chosen", "window, as chosen")
        report[name] = taken | {"dense over window": ratio}
    return report


def ratio_of(taken: Mapping[str, Any], one: str, other: str) -> float | None:
    """How many times as long one takes; None where either failed."""
    above, below = taken.get(one), taken.get(other)
    return above / below if isinstance(above, float) and isinstance(below, float) else None


class Case(NamedTuple):
    """An operation's call.

    Attributes:
        leaves: the fields of the call that gradients are taken of.
        peers: functions of other libraries that compute the same, and what they differentiate.
    """

    operation: str
    call: Any
    leaves: tuple[str, ...]
    peers: dict[str, tuple[Run, list[Tensor]]]


def drawn(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers on the device, which require a gradient."""
    return (scale * torch.randn(*shape, device=device())).to(dtype).requires_grad_()


def decays(*shape: int, most: float = 0.3) -> Tensor:
    """Logarithms of decays between exp(-most) and 1."""
    return (-most * torch.rand(*shape, device=device())).requires_grad_()


def of_fla(module: str, name: str) -> Any:
    """A function of `fla`; None where it cannot be imported."""
    if find_spec("fla") is None or not torch.cuda.is_available():
        return None
    return getattr(importlib.import_module(f"fla.{module}"), name)


def narrow(*tensors: Tensor) -> list[Tensor]:
    """In bfloat16, which kernels of other libraries are written for."""
    return [x.detach().bfloat16().contiguous().requires_grad_() for x in tensors]


def selective_scan(tiny: bool) -> Case:
    rows, steps, channels, states = (1, 4, 3, 2) if tiny else (8, 2048, 1536, 16)
    a = -torch.arange(1.0, states + 1, device=device())[:, None].expand(-1, channels).contiguous()
    call = SelectiveScanCall(drawn(rows, steps, channels), (0.1 * torch.rand(rows, steps, channels, device=device())
                                                            ).requires_grad_(), a.requires_grad_(),
                             drawn(rows, steps, states), drawn(rows, steps, states),
                             torch.zeros(rows, states, channels, device=device()), None)
    peers = {}
    if find_spec("mamba_ssm") is not None:
        scan = importlib.import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_fn
        u, dt, b, c = narrow(*(x.mT for x in (call.u, call.dt, call.b, call.c)))
        rates = call.a.detach().t().contiguous().requires_grad_()
        peers["mamba_ssm bfloat16"] = (lambda: scan(u, dt, rates, b, c)), [u, dt, rates, b, c]
    return Case("selective_scan", call, ("u", "dt", "a", "b", "c"), peers)


def linear_recurrence(shape: tuple[int, int, int, int, int, int], decay: str) -> Case:
    """Of rows, tokens, key heads, states, features of a key and of a value."""
    rows, steps, keys, heads, e, f = shape
    sizes = {"constant": (1, 1, heads, 1), "token": (rows, steps, heads, 1)}
    log_decay = decays(*sizes[decay]) if decay in sizes else None
    call = LinearRecurrenceCall(drawn(rows, steps, keys, e, scale=e**-0.5), drawn(rows, steps, keys, e, scale=e**-0.5),
                                drawn(rows, steps, heads, f), log_decay,
                                torch.zeros(rows, heads, e, f, device=device()))
    peers, peer = {}, of_fla("ops.simple_gla", "chunk_simple_gla")
    if peer is not None:
        q, k, v = narrow(*(x.expand(-1, -1, heads, -1) for x in (call.q, call.k, call.v)))
        g = None if log_decay is None else log_decay.detach().expand(rows, steps, heads, 1)[..., 0].contiguous(
        ).requires_grad_()
        peers["fla bfloat16"] = (lambda: peer(q, k, v, g, scale=1.0)[0]), [q, k, v, *([] if g is None else [g])]
    return Case("linear_recurrence", call, ("q", "k", "v", *(["log_decay"] if log_decay is not None else [])), peers)


def delta_rule_of_gated_delta_net(tiny: bool) -> Case:
    """One decay a head and token."""
    rows, steps, heads, e, f = (1, 3, 2, 4, 5) if tiny else (8, 2048, 6, 128, 256)
    q, v = drawn(rows, steps, heads, e, scale=e**-0.5), drawn(rows, steps, heads, f)
    k, rate = F.normalize(drawn(rows, steps, heads, e).detach(), dim=-1), torch.rand(rows, steps, heads, 1,
                                                                                    device=device())
    g = decays(rows, steps, heads, 1)
    a, b, written = (x.detach().contiguous().requires_grad_() for x in (g.exp() * k, -rate * k, rate * k))
    call = DeltaRuleCall(q, written, v, a, b, g, torch.zeros(rows, heads, e, f, device=device()))
    peers, peer = {}, of_fla("ops.gated_delta_rule", "chunk_gated_delta_rule")
    if peer is not None:
        q_, k_, v_, rate_ = narrow(q, k, v, rate[..., 0])
        g_ = g.detach()[..., 0].contiguous().requires_grad_()
        peers["fla bfloat16"] = (lambda: peer(q_, k_, v_, g_, rate_, scale=1.0)[0]), [q_, k_, v_, g_, rate_]
    return Case("delta_rule", call, ("q", "k", "v", "a", "b", "log_decay"), peers)


def delta_rule_of_rwkv7(tiny: bool) -> Case:
    """A decay for each feature."""
    rows, steps, heads, e = (1, 3, 2, 4) if tiny else (8, 2048, 12, 64)
    q, k, v = (drawn(rows, steps, heads, e, scale=scale) for scale in (e**-0.5, e**-0.5, 1.0))
    removed = F.normalize(drawn(rows, steps, heads, e).detach(), dim=-1)
    rate, g = torch.rand(rows, steps, heads, e, device=device()), decays(rows, steps, heads, e, most=0.6)
    a, b = (x.detach().contiguous().requires_grad_() for x in (-removed, removed * rate))
    call = DeltaRuleCall(q, k, v, a, b, g, torch.zeros(rows, heads, e, e, device=device()))
    peers, peer = {}, of_fla("ops.rwkv7", "chunk_rwkv7")
    if peer is not None:
        given = narrow(q, g, k, v, a, b)
        peers["fla bfloat16"] = (lambda: peer(*given, scale=1.0)[0]), given
    return Case("delta_rule", call, ("q", "k", "v", "a", "b", "log_decay"), peers)


def wkv(tiny: bool) -> Case:
    rows, steps, width = (1, 5, 4) if tiny else (8, 1024, 768)
    k, v, bonus = drawn(rows, steps, width), drawn(rows, steps, width), drawn(width)
    decay = (-torch.rand(width, device=device()) - 0.01).requires_grad_()
    before = torch.zeros(rows, 3, width, device=device())
    before[:, 2] = EMPTY
    peers, peer = {}, of_fla("ops.rwkv4", "fused_recurrent_rwkv4")
    if peer is not None:
        leaves = [(-decay.detach()).log().requires_grad_(), *(x.detach().clone().requires_grad_()
                                                              for x in (bonus, k, v))]
        state = torch.zeros(rows, 3, 1, width, device=device())
        state[:, 2] = -1e38
        peers["fla float32"] = (lambda: peer(*leaves, state)[0]), leaves
    return Case("wkv", WKVCall(k, v, decay, bonus, before, None, None), ("k", "v", "decay", "bonus"), peers)


def diagonal_recurrence(tiny: bool) -> Case:
    rows, steps, width = (1, 5, 4) if tiny else (8, 2048, 1024)
    x, g = drawn(rows, steps, width), decays(rows, steps, width)
    peers = {}
    for name in ("chunk_hgrn", "fused_recurrent_hgrn"):
        peer = of_fla("ops.hgrn", name)
        if peer is not None:
            leaves = [each.detach().clone().requires_grad_() for each in (x, g)]
            peers[f"fla {name}"] = (lambda peer=peer, leaves=leaves: peer(*leaves)[0]), leaves
    return Case("diagonal_recurrence", DiagonalRecurrenceCall(x, g, torch.zeros(rows, width, device=device())),
                ("x", "log_decay"), peers)


def short_convolution(tiny: bool) -> Case:
    """Of Mamba: four taps, a bias and silu, in bfloat16."""
    rows, steps, width = (1, 5, 4) if tiny else (8, 2048, 1536)
    dtype = torch.bfloat16
    x, weight, bias = drawn(rows, steps, width, dtype=dtype), drawn(width, 1, 4, dtype=dtype), drawn(width, dtype=dtype)
    padded = F.pad(x.detach(), (0, 0, 3, 0)).requires_grad_()
    peers, peer = {}, of_fla("modules.causal_conv1d", "causal_conv1d")
    if peer is not None:
        leaves = [x, weight.detach()[:, 0].contiguous().requires_grad_(), bias.detach().clone().requires_grad_()]
        peers["fla bfloat16"] = (lambda: peer(*leaves, activation="silu")[0]), leaves
    return Case("short_convolution", ShortConvolutionCall(padded, weight, bias, 1, None, True),
                ("inputs", "weight", "bias"), peers)


def first(found: Any) -> Tensor:
    """The outputs of an operation that also returns a state."""
    return found if isinstance(found, Tensor) else found[0]


def operation_report(case: Case) -> dict[str, Any]:
    """Milliseconds by form, forward and with gradients, and the largest errors against float64."""
    torch.manual_seed(0)
    operation = OPERATIONS.get(case.operation)
    left_out = ("reference", "step", "token", "native", "native_token")
    forms = [form.name for form in operation.forms() if form.name not in left_out and operation.can(form, case.call)]
    leaves = [getattr(case.call, name) for name in case.leaves]
    runs = {name: ((lambda name=name: first(operation(case.call, name))), leaves) for name in forms} | case.peers
    report = {"chosen": operation.choose(case.call).form.name,
              "forward ms": in_turns({name: forward_only(run) for name, (run, _) in runs.items()}, seconds=0.3),
              "forward and backward ms": in_turns({name: both_ways(*each) for name, each in runs.items()}, seconds=0.5)}
    try:
        report["error"] = errors(operation, case, forms)
    except Exception as error:  # such as a lack of memory in float64: times stand all the same
        report["error"] = why(error)
    return report


def errors(operation: Operation[Any, Any], case: Case, forms: list[str]) -> dict[str, dict[str, float]]:
    """The largest difference from float64 of an output and of a gradient, as a share of the largest number there."""
    def wide(x: Any) -> Any:
        return x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, Tensor) and x.is_floating_point(
        ) else x

    def outcome(call: Any, form: str | None, weights: Tensor | None) -> tuple[list[Tensor], Tensor]:
        y = first(operation(call, form))
        weights = torch.randn_like(y) if weights is None else weights
        return [y.detach(), *torch.autograd.grad(y, [getattr(call, name) for name in case.leaves],
                                                 weights.to(y.dtype))], weights

    exact, weights = outcome(type(case.call)(*map(wide, case.call)), None, None)
    found = {}
    for form in forms:
        own, _ = outcome(case.call, form, weights)
        each = [float((one - other).abs().max() / other.abs().max()) for one, other in zip(own, exact, strict=True)]
        found[form] = {"output": each[0], "gradient": max(each[1:])}
    return found


CASES: dict[str, Callable[[bool], Case]] = {
    "selective_scan": selective_scan,
    "linear_recurrence/mamba-2": lambda tiny: linear_recurrence(
        (1, 3, 1, 2, 3, 4) if tiny else (8, 2048, 1, 24, 128, 64), "token"),
    "linear_recurrence/retention": lambda tiny: linear_recurrence(
        (1, 3, 2, 2, 3, 4) if tiny else (8, 2048, 4, 4, 128, 256), "constant"),
    "linear_recurrence/linear attention": lambda tiny: linear_recurrence(
        (1, 3, 2, 2, 3, 4) if tiny else (8, 2048, 12, 12, 64, 64), "none"),
    "delta_rule/gated delta net": delta_rule_of_gated_delta_net, "delta_rule/rwkv-7": delta_rule_of_rwkv7,
    "wkv": wkv, "diagonal_recurrence": diagonal_recurrence, "short_convolution": short_convolution}


def figure_of(make: Callable[[bool], Case]) -> Callable[[bool, Known], dict[str, Any]]:
    """A figure that makes the call when it is taken."""
    return lambda tiny, _: operation_report(make(tiny))


FIGURES: dict[str, Figure] = {
    "card/speed": Figure(8, card),
    "attention/causal": Figure(15, attention_of_gpt2), "attention/window": Figure(20, attention_of_windows),
    "attention/documents": Figure(20, attention_of_documents),
    **{f"operations/{name}": Figure(15, figure_of(make)) for name, make in CASES.items()}}
