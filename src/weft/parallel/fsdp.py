"""FSDP2: every process stores a part of each parameter, and of what the optimiser keeps for it.

`fully_shard` gathers the parameters of a block before it computes, and adds and divides their gradients after its
backward pass. Blocks are one group each; embeddings, norms and readouts outside of them are the root's. The model is
entered through one module, `GatheredRoot`, because Weft calls several methods of a model where FSDP2 expects `forward`.

In bfloat16 the parameters that are stored are float32, blocks compute with bfloat16 copies, and gradients are added in
float32. Parameters that a part keeps wide (`Declared.exact`, `Declared.wide_in_training`), small vectors all of them,
are whole on every process, and their gradients are added by `weft.training.exchange`. FSDP2's casting of inputs is off:
it would turn a float32 state into bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from weft.core.layer import Layer, kept_dtypes, with_boundaries
from weft.core.model import Model
from weft.core.span import Output
from weft.parallel.mesh import Mesh

R = TypeVar("R")


class GatheredRoot(nn.Module):
    """The root of FSDP2: calls ``work`` while the model's own parameters are gathered."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)


class Sharded:
    """A model whose parameters are sharded over the axis ``shard`` of the mesh, and replicated over ``replicate``.

    Args:
        model: whole, with the same weights on every process; its parameters become DTensors.
        dtype: what it computes in; the parameters stay float32 where it is bfloat16.
        one_group: gather the whole model at once and not block by block, as the compiler needs, which would cut the
            pass at every block.
    """

    def __init__(self, model: Model, mesh: Mesh, dtype: torch.dtype, *, one_group: bool = False) -> None:
        self.model = self.working = model if dtype == torch.bfloat16 else model.to(dtype)
        narrow = dtype == torch.bfloat16
        options: dict[str, Any] = {"mesh": mesh.along(*(("replicate", "shard") if mesh.size("replicate") > 1 else
                                                        ("shard",)))}
        if narrow:
            options["mp_policy"] = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
            kept = kept_dtypes(model)
            options["ignored_params"] = {each for each in model.parameters() if id(each) in kept.exact | kept.wide}
        self._buffers = list(_narrowed(model, dtype)) if narrow else []
        shared = _shared(model) if not one_group else frozenset()
        for block in () if one_group or shared else _blocks(model):
            block.register_forward_hook(_own)  # before FSDP2's
            _add(fully_shard(block, **options))
        self._root = GatheredRoot(model)
        self._sharded = fully_shard(self._root, **options)
        _add(self._sharded)

    def enter(self, work: Callable[..., R], *arguments: Any) -> R:
        """Call ``work`` with the parameters ready, all processes together. Those that are gathered for a call without
        gradients are freed at its end."""
        result: R = self._root(work, *arguments)
        if not torch.is_grad_enabled():
            self._sharded.reshard()
        return result

    def collect_gradients(self) -> None:
        """FSDP2 has added the gradients to those of the stored parameters."""

    def refresh(self, *, buffers: bool = False, frozen: bool = False) -> None:
        """The next call gathers all parameters, ``frozen`` ones too. With ``buffers``, take over those that were
        loaded."""
        for module, name, whole in self._buffers if buffers else ():
            setattr(module, name, whole.to(getattr(module, name).dtype))

    def finish(self) -> None:
        """Every process has its part of each weight in memory."""

    def buffers(self) -> dict[int, Tensor]:
        """The buffers in their own dtype, by the identity of the narrow ones that compute."""
        found = {}
        for module, name, whole in self._buffers:
            own = getattr(module, name)
            if not torch.equal(whole.to(own.dtype), own):
                whole.copy_(own)
            found[id(own)] = whole
        return found


def _add(module: FSDPModule) -> None:
    """Add gradients instead of averaging them: a batch's loss is already divided by the targets of all processes. The
    plain sum is what every backend offers."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The blocks of every stack that is not inside another one's block, each once."""
    stacks, seen = with_boundaries(model), set[int]()
    inside = {id(inner) for stack in stacks for inner in stack.modules() if inner is not stack}
    for stack in stacks:
        for block in _layers(stack) if id(stack) not in inside else ():
            if id(block) not in seen and any(True for _ in block.parameters()):
                seen.add(id(block))
                yield block


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, Layer):
            yield child
        else:
            yield from _layers(child)


def _shared(model: nn.Module) -> frozenset[int]:
    """Parameters that a block shares with another or with what lies outside, which no two groups may have."""
    blocks = list(_blocks(model))
    known = {id(block) for block in blocks}

    def outside(module: nn.Module) -> Iterator[nn.Parameter]:
        yield from module.parameters(recurse=False)
        for child in module.children():
            yield from () if id(child) in known else outside(child)

    users: dict[int, set[int]] = {}
    for index, parameters in enumerate([outside(model), *(block.parameters() for block in blocks)]):
        for parameter in parameters:
            users.setdefault(id(parameter), set()).add(index)
    return frozenset(parameter for parameter, places in users.items() if len(places) > 1)


def _narrowed(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Give the model's buffers the dtype in which it computes, except for those that parts keep; each with its module,
    its name and its values before."""
    kept = kept_dtypes(model)
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            after = kept.after(buffer, dtype)
            if buffer.is_floating_point() and after != buffer.dtype:
                yield module, name, buffer
                setattr(module, name, buffer.to(after))


def _own(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
    """The output of a block as a tensor of its own: FSDP2 waits for the gradient of it, which a view may lose."""
    assert isinstance(output, Output), "a layer"
    return output if output.y._base is None else output._replace(y=output.y.clone())
