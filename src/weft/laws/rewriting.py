"""A rewritten part computes what the part computes with the weights that the rewrite stands for."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from weft.core.errors import UnsupportedError
from weft.core.model import Model
from weft.laws.in_pieces import in_pieces
from weft.laws.report import COUNT, Finding, difference
from weft.laws.subject import Subject
from weft.linear.linear import Rewritten, Use, allowed, reads
from weft.linear.lora import LoRAConfig
from weft.linear.merging import merged, put_in, rewritten_maps
from weft.linear.quantised import Int8Config
from weft.linear.replacing import replaced, sites
from weft.linear.rewrite import RewriteConfig, apply
from weft.ops.forms import forced

LAW = "rewriting"


def rewriting(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """A part whose linear maps are adapted, quantised or multiplied in a wider dtype computes what it computes with the
    weights that these stand for: it reads no matrix except by calling the map."""
    own, x = subject.module, subject.inputs(2, subject.steps, generator)
    source = int(torch.randint(2**31, (), generator=generator))
    with torch.no_grad():
        before = _whole(subject, x, source)
        plain = _plain(own) if isinstance(own, Model) else None
        if plain is not None:
            yield Finding(LAW, "merged", difference(_whole(subject.remake(plain), x, source), before), subject.bound)
        if not subject.thorough:
            return
        if next(sites(own), None) is not None:
            with forced({"linear": "wide" if x.device.type == "cpu" else "reference"}):
                yield Finding(LAW, "widened", difference(_whole(subject, x, source), before), subject.bound)
        yield from _effects(subject, x, source, generator)
        if maps := _reached(own, "adapt"):
            rewrite = LoRAConfig(rank=1, alpha=1.0, maps=maps)
            yield from _compared(subject, "adapted", rewrite, x, source, generator)
        if _reached(own, "quantise"):
            yield from _compared(subject, "quantised", Int8Config(), x, source, generator)


def _plain(model: Model) -> Model | None:
    """The model without its rewrites; None if it has none, or if they have changed one of two parts with one matrix."""
    try:
        return merged(model) if model.config.rewrites else None
    except UnsupportedError:
        return None


def _whole(subject: Subject, x: Tensor, source: int) -> Tensor:
    """The outputs of a call without a state. ``source`` is the seed of what cross-attention reads, which a model with
    an encoder computes by its own weights."""
    return subject.whole(x, subject.memory(2, torch.Generator().manual_seed(source))).y


def _pieces(subject: Subject, x: Tensor, source: int) -> Tensor:
    """The outputs of several tokens in one call, then of single tokens."""
    memory = subject.memory(2, torch.Generator().manual_seed(source))
    state = subject.start(2, memory, None, subject.steps)
    return in_pieces(subject, x, state, [subject.steps - 2, 1, 1])[0]


def _compared(subject: Subject, name: str, rewrite: RewriteConfig, x: Tensor, source: int,
              generator: torch.Generator) -> Iterator[Finding]:
    """The part rewritten against the part with other weights."""
    rewritten, plain = _both(subject, rewrite, generator)
    yield Finding(LAW, name, difference(_whole(rewritten, x, source), _whole(plain, x, source)), subject.bound)
    if subject.stateful:
        yield Finding(LAW, f"{name}, in pieces", difference(_pieces(rewritten, x, source), _pieces(plain, x, source)),
                      subject.bound)
    yield from _effects(rewritten, x, source, generator)


def _reached(module: nn.Module, use: Use) -> list[str]:
    """The paths of the maps that are rewritten: of those that are a part's own, adapters stand beside what a part
    reads. A matrix that predictions are made with is left as it is, for an encoder's output does not depend on them."""
    return [site.path for site in sites(module) if use in allowed(site.map())
            and (not site.own or (use == "adapt" and reads(site.module)))]


def _both(subject: Subject, rewrite: RewriteConfig, generator: torch.Generator) -> tuple[Subject, Subject]:
    """The part rewritten, and the part whose weights have the values that the rewritten maps stand for.

    The values are written into the parameters of the second, so that they reach whatever keeps another reference to a
    matrix or to a map; the rewrite of the first reaches only the map. A map that an earlier rewrite has left without a
    parameter is replaced. An adapter beside a matrix that has several names stays at zero, because a plain part has no
    second matrix to hold its term; `_effects` examines it.
    """
    copied, plain = copy.deepcopy(subject.module), copy.deepcopy(subject.module)
    names = {parameter.data_ptr(): name for name, parameter in copied.named_parameters()}
    with torch.random.fork_rng(devices=[]):
        applied = apply(copied, rewrite)
    before = {each.path: each.before for each in applied.replacements}
    shared, dense = _shared(applied.model), dict[str, nn.Module]()
    for path, put in put_in(applied.replacements):
        if not _beside_shared(put, shared):
            put.perturb(generator)
        own = dict(before[path].named_parameters(recurse=False)).get("weight")
        if own is None:
            dense[path] = put.eval().merged()
        else:
            place = plain.get_parameter(names[own.data_ptr()])
            place.copy_(put.eval().merged().weight.view(place.shape))
    plain = replaced(plain, lambda path, module: dense.get(path, module)).model
    return subject.remake(applied.model), subject.remake(plain)


def _effects(subject: Subject, x: Tensor, source: int, generator: torch.Generator) -> Iterator[Finding]:
    """Each adapter beside a matrix that has several names, changed by itself: the output changes too, unless it does
    not depend on the matrix either, as that of an expert that no token was routed to."""
    shared = _shared(subject.module)
    paths = [path for path, put in rewritten_maps(subject.module).items() if _beside_shared(put, shared)]
    if paths:
        before = _whole(subject, x, source)
        idle = [path for path in paths if _is_idle(subject, path, before, x, source, generator)]
        yield Finding(LAW, f"adapters without effect on the output: {', '.join(idle) or 'none'}", float(len(idle)),
                      COUNT)


def _is_idle(subject: Subject, path: str, before: Tensor, x: Tensor, source: int, generator: torch.Generator) -> bool:
    """Whether the output changes with the matrix beside an adapter and not with the adapter."""
    other = subject.remake(copy.deepcopy(subject.module))
    changed = rewritten_maps(other.module)[path]
    changed.perturb(generator)
    if difference(_whole(other, x, source), before) > subject.bound:
        return False
    shared = _shared(other.module)
    for parameter in changed.parameters():
        if id(parameter) in shared:
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter))
    return difference(_whole(other, x, source), before) > subject.bound


def _shared(module: nn.Module) -> set[int]:
    """Identities of the matrices that have several names."""
    counts = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False)
                     if parameter.dim() > 1)
    return {key for key, count in counts.items() if count > 1}


def _beside_shared(put: Rewritten, shared: set[int]) -> bool:
    """Whether parameters of its own are added to a matrix that has several names."""
    return bool(put.draws()) and any(id(parameter) in shared for parameter in put.parameters())
