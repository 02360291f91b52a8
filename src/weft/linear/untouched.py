"""Which modules a rewrite may replace: those that nothing from outside has changed.

A rewrite replaces a module by another with the same parameters: matrices joined, laid out anew, extended by a term, in
fewer bits. Whatever else has been done to a module (a subclass, a hook, a patched method) is not in its parameters and
would be lost.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor, nn

from weft.core.compiling import constant_to_compiler

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where `torch.nn.Module` stores the hooks that are called with a module."""


def untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether ``module`` behaves as its class ``kind`` defines, so that a rewrite of ``kind`` may replace it.

    It does not where it is of a subclass (an adapter; a parametrisation makes one too), has hooks, has an attribute
    that shadows a method of the class, or has parameters of a special class (quantised ones).
    """
    own = vars(module)
    if type(module) is not kind or any(own[hooks] for hooks in HOOKS):
        return False
    if any(name in own for name in _methods(kind)):
        return False
    return all(type(p) in (nn.Parameter, Tensor) for p in module._parameters.values() if p is not None)


@constant_to_compiler
def _methods(kind: Any) -> tuple[str, ...]:
    """The names of a class that an attribute of a module could shadow. PyTorch 2.11 compiles the question whether a
    module has an attribute of a name, and not a loop over its attributes."""
    return _listed(kind)


@cache
def _listed(kind: type[Any]) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if callable(getattr(kind, name, None)))
