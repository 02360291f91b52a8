"""A rewritten part is the part with the weights that the rewrite stands for."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn

from weft.core.model import Model
from weft.laws.report import Finding, difference
from weft.laws.subject import Subject
from weft.linear.int8 import Int8Config
from weft.linear.linear import Use, allowed
from weft.linear.lora import LoRAConfig, kept_apart
from weft.linear.merging import merged, put_in
from weft.linear.replacing import replaced, sites
from weft.linear.rewrite import RewriteConfig, apply
from weft.ops.forms import forced

LAW = "rewriting"


def rewriting(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """A part whose maps are adapted, quantised or multiplied in wider numbers computes what it does with the weights
    that these stand for: nothing in it reads a matrix past its map."""
    x, memory = subject.inputs(2, subject.steps, generator), subject.memory(2, generator)
    own = subject.module
    with torch.no_grad():
        before = subject.whole(x, memory).y
        if isinstance(own, Model) and own.config.rewrites and not kept_apart(own):
            plain = subject.remake(merged(own))
            yield Finding(LAW, "merged", difference(plain.whole(x, memory).y, before), subject.bound)
        if not subject.thorough:
            return
        if next(sites(own), None) is not None:
            with forced({"linear": "wide"}):
                yield Finding(LAW, "widened", difference(subject.whole(x, memory).y, before), subject.bound)
        for name, rewrite in (("adapted", LoRAConfig(rank=1, alpha=1.0)), ("quantised", Int8Config())):
            if _reached(own, rewrite.use):
                found, plain = _both(subject, rewrite, generator)
                yield Finding(LAW, name, difference(found.whole(x, memory).y, plain.whole(x, memory).y), subject.bound)


def _reached(module: nn.Module, use: Use) -> bool:
    """Whether a rewrite without patterns reaches a map."""
    return any(use in allowed(site.map()) for site in sites(module) if not site.own)


def _both(subject: Subject, rewrite: RewriteConfig, generator: torch.Generator) -> tuple[Subject, Subject]:
    """The part rewritten, and the part with the weights that its maps now stand for."""
    with torch.random.fork_rng(devices=[]):
        found = apply(copy.deepcopy(subject.module), rewrite)
    dense: dict[str, nn.Module] = {}
    for path, put in put_in(found.replacements):
        put.perturb(generator)
        dense[path] = put.eval().merged()
    plain = replaced(copy.deepcopy(subject.module), lambda path, module: dense.get(path, module)).model
    return subject.remake(found.model), subject.remake(plain)
