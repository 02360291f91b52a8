"""`Direct`: modules whose call goes straight to `forward` where nothing else is to be called with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

TORCH_CALL = nn.Module.__call__
"""What a call of a module is; tracers (`torch.fx`, `torch.export`) put something else in its place while they work."""


class Direct(nn.Module):
    """Base of modules that are called often.

    `torch.nn.Module` goes through two functions of its own before it comes to `forward`, which in a step of one token
    cost more than the work of a small layer. A call here goes to `forward` at once under the condition under which
    those two do nothing else: the module has no hooks and no compiled form, there are no global hooks, and nothing
    traces.

    For the same reason modules that run in every step read children and parameters in ``_modules`` and
    ``_parameters``, where torch keeps them: an attribute of that name is looked up in a function of Python's.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
                or torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
                or torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks
                or self._compiled_call_impl is not None or torch._C._get_tracing_state()
                or nn.Module.__call__ is not TORCH_CALL):
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)
