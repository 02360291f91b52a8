"""Which modules a rewrite may take apart: those of which all is known.

Rewrites put another module in the place of one, with the same parameters: matrices side by side, laid out anew, with a
term beside them, in fewer bits. What somebody has made of a module is in none of its parameters, and would be lost.
"""

from __future__ import annotations

from torch import Tensor, nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where `torch.nn.Module` keeps what else is called with a module."""


def untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether ``module`` does what ``kind`` says and nothing else: a rewrite that knows ``kind`` may replace it.

    It does not where it is of a subclass (an adapter; a parametrisation makes one too), has hooks, holds a function of
    its own in the place of one of the class's, or has parameters of a kind of their own (quantised ones).
    """
    own = vars(module)
    if type(module) is not kind or any(own[hooks] for hooks in HOOKS):
        return False
    if any(callable(getattr(kind, name, None)) for name in own):
        return False
    return all(type(p) in (nn.Parameter, Tensor) for p in own["_parameters"].values() if p is not None)
