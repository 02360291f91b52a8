"""`Direct`: modules whose calls run `forward` directly if there are no hooks to call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

TORCH_CALL = nn.Module.__call__
"""PyTorch's call of a module; tracers (`torch.fx`, `torch.export`) replace it while they trace."""


def calls_forward_alone(module: nn.Module) -> bool:
    """Whether a call of a module runs the ``forward`` of its class and nothing else: there are no hooks, on it or on
    all modules, it has no compiled form or ``forward`` of its own, and nothing is traced."""
    return not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
                or module._backward_pre_hooks or torch_module._global_forward_hooks
                or torch_module._global_forward_pre_hooks or torch_module._global_backward_hooks
                or torch_module._global_backward_pre_hooks or module._compiled_call_impl is not None
                or "forward" in vars(module) or torch._C._get_tracing_state()
                or nn.Module.__call__ is not TORCH_CALL)


class Direct(nn.Module):
    """Base of modules that are called often.

    `torch.nn.Module` calls two Python functions before `forward`, which in a step of one token take more time than the
    computation of a small layer. A call of this class runs `forward` directly whenever those two would do nothing else:
    the module has no hooks and no compiled form, there are no global hooks, and nothing is traced.

    For the same reason modules that run in every step read children and parameters from ``_modules`` and
    ``_parameters``, where torch stores them: as attributes they are looked up by `Module.__getattr__`, in Python.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
                or torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
                or torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks
                or self._compiled_call_impl is not None or torch._C._get_tracing_state()
                or nn.Module.__call__ is not TORCH_CALL):
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)
