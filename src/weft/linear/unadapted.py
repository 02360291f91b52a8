"""Which modules a rewrite may replace: those that nothing from outside has changed.

A rewrite replaces a module by another with the same parameters: matrices joined, laid out anew, extended by a term, in
fewer bits. Whatever else has been done to a module (a subclass, a hook, a patched method) is not in its parameters and
would be lost.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor, nn

from weft.core.compiling import compiler_traces, constant_to_compiler

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where `torch.nn.Module` stores the hooks that are called with a module."""
PLAIN = frozenset({nn.Parameter, Tensor, type(None)})
"""Classes of parameters that a rewrite knows, and of those that a module does without."""


def unadapted(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether ``module`` behaves as its class ``kind`` defines, so that a rewrite of ``kind`` may replace it.

    It does not where it is of a subclass (an adapter; a parametrisation makes one too), has hooks, has an attribute
    that shadows a method of the class, or has parameters of a special class (quantised ones).
    """
    of_class: Any = kind
    own, methods = vars(module), _methods(of_class)
    if type(module) is not kind:
        return False
    for hooks in HOOKS:
        if own[hooks]:
            return False
    own_parameters = module._parameters.values()
    if compiler_traces():  # PyTorch 2.11 compiles questions about one attribute or class, and not those about all
        return not any(name in own for name in methods) and all(type(each) in PLAIN for each in own_parameters)
    # A generator's entries would be a call of Python's each, a hundred for every map in a step of one token.
    return methods.isdisjoint(own) and PLAIN.issuperset(map(type, own_parameters))


@cache
@constant_to_compiler
def _methods(kind: Any) -> frozenset[str]:
    """The names of a class that an attribute of a module could shadow."""
    return frozenset([name for name in dir(kind) if callable(getattr(kind, name, None))])
