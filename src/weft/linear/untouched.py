"""Which modules a rewrite may replace: those that nothing from outside has changed.

A rewrite replaces a module by another with the same parameters: matrices joined, laid out anew, extended by a term, in
fewer bits. Whatever else has been done to a module (a subclass, a hook, a patched method) is not in its parameters and
would be lost.
"""

from __future__ import annotations

from torch import Tensor, nn

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
    if any(callable(getattr(kind, name, None)) for name in own):
        return False
    return all(type(p) in (nn.Parameter, Tensor) for p in own["_parameters"].values() if p is not None)
