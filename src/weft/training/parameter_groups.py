"""Groups of parameters with their own learning rate and weight decay: by kind, by name, and by depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

from pydantic import Field, model_validator
from torch import nn

from weft.core.config import rule
from weft.core.layer import Part, with_boundaries
from weft.core.part_config import Settings
from weft.linear.rewrite import matches, nearest_end
from weft.training.parameter_kinds import Kind, Labelled, labelled

PLACE = "training.optimizer"


class GroupSettings(Settings):
    """Parameters with a rate or decay of their own. Where several groups hold a parameter, the first one counts.

    Attributes:
        kinds: what the parameters are, see `weft.training.parameter_kinds`: ``matrices``, ``vectors``, ``embeddings``,
            ``readouts``, ``dynamics``; None: of every kind.
        names: shell patterns (``*``, ``?``, ``[0-3]``) for the dotted name of a parameter, of a module that contains
            it, or of the end of such a name: ``norm``, ``stack.layers.0``, ``qkv.bias``; None: of every name.
        lr: their peak learning rate, which the schedule multiplies; None: that of the optimiser.
        weight_decay: of all of them, vectors too; None: that of the optimiser.
    """

    kinds: list[Kind] | None = Field(default=None, min_length=1)
    names: list[str] | None = Field(default=None, min_length=1)
    lr: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    weight_decay: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kinds is None and self.names is None:
            raise rule("", "a group without kinds and names.", "Say which parameters it holds.")
        if self.lr is None and self.weight_decay is None:
            raise rule("", "a group without lr and weight_decay.", "Give one of them, or leave the group out.")
        return self

    def holds(self, each: Labelled) -> bool:
        """Whether the group has this parameter."""
        return (self.kinds is None or each.kind in self.kinds) and (
            self.names is None or any(matches(each.name, pattern) for pattern in self.names))


def group_of(each: Labelled, groups: Sequence[GroupSettings]) -> GroupSettings | None:
    """The first group that holds a parameter; None: none does."""
    return next((group for group in groups if group.holds(each)), None)


def group_problems(model: nn.Module, groups: Sequence[GroupSettings]) -> Iterator[str]:
    """The problems of groups for this model: patterns and kinds that match no trained parameter, and groups whose
    parameters earlier ones hold."""
    every = list(labelled(model)) if groups else []
    split = [each.name.split(".") for each in every]
    paths = sorted({".".join(names[:end]) for names in split for end in range(1, len(names) + 1)})
    for index, group in enumerate(groups):
        place, found = f"{PLACE}.groups.{index}", False
        for number, pattern in enumerate(group.names or ()):
            if not any(matches(each.name, pattern) for each in every):
                found = True
                yield (f"{place}.names.{number}: {pattern!r} matches no parameter that trains. "
                       f"{nearest_end(pattern, paths)}")
        for number, kind in enumerate(group.kinds or ()):
            if not any(each.kind == kind for each in every):
                found = True
                yield f"{place}.kinds.{number}: no parameter that trains is one of the {kind}. Leave it out."
        if not found and not any(group_of(each, groups) is group for each in every):
            yield (f"{place}: it holds no parameter that an earlier group does not hold. Change it, move it before "
                   "the other, or leave it out.")


def blocks_of(model: nn.Module) -> list[list[Part]]:
    """The blocks of every stack of a model in order, a block that is used repeatedly once. A stack is a part that
    declares `kept_activations`; those inside a block belong to the block."""
    stacks = with_boundaries(model)
    inside = {id(inner) for stack in stacks for inner in stack.modules() if inner is not stack}
    return [list(_parts_in(stack)) for stack in stacks if id(stack) not in inside]


def _parts_in(module: nn.Module) -> Iterator[Part]:
    """The outermost parts in a module."""
    for child in module.children():
        if isinstance(child, Part):
            yield child
        else:
            yield from _parts_in(child)


def depths(model: nn.Module) -> dict[int, int]:
    """How far below the top each parameter lies, by its identity: 1 for the last block of a stack, L for the first of
    L; L + 1 for embeddings and for everything before the first block; parameters above the blocks, such as a last norm
    and a readout of its own, are left out. A parameter of several blocks counts for the first."""
    found = dict[int, int]()
    stacks = blocks_of(model)
    for blocks in stacks:
        for index, block in enumerate(blocks):
            for parameter in block.parameters():
                found.setdefault(id(parameter), len(blocks) - index)
    lowest, above = max(found.values(), default=0) + 1, False
    tables = {id(each.parameter) for each in labelled(model) if each.kind == "embeddings"}
    for module in model.modules():
        above = above or any(module is block for blocks in stacks for block in blocks)
        for parameter in module.parameters(recurse=False):
            if not above or id(parameter) in tables:
                found.setdefault(id(parameter), lowest)
    return found
