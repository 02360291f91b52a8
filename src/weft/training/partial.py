"""Training of some parts: which parameters of a model train, by name and by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar, get_args

from torch import nn

from weft.core.errors import ConfigError
from weft.linear.rewrite import matches, nearest_end
from weft.training.parameter_kinds import Kind, Labelled, labelled

M = TypeVar("M", bound=nn.Module)
PLACE = "training.train"
KINDS: frozenset[str] = frozenset(get_args(Kind))


def only_trained(model: M, patterns: Sequence[str] | None) -> M:
    """Freeze every parameter of a model that no pattern reaches, and return the model: what is frozen has no gradient
    and no state of the optimiser, does not decay and takes no part in clipping. What parts change otherwise than by
    gradients, such as running statistics, still changes.

    Args:
        model: which parameters that are frozen already stay so, such as the matrices that an adapter is added to.
        patterns: kinds of parameters (`weft.training.parameter_kinds`), or shell patterns for their names as in
            `weft.training.parameter_groups`; a tied parameter has every name under which it is used. None: nothing is
            frozen.

    Raises:
        ConfigError: a pattern reaches no parameter that trains; all are listed.
    """
    if patterns is None:
        return model
    every, names = list(labelled(model)), _names(model)
    if problems := list(_unreached(every, names, patterns)):
        raise ConfigError(problems)
    for each in every:
        each.parameter.requires_grad_(any(_reaches(pattern, each, names) for pattern in patterns))
    return model


def _reaches(pattern: str, each: Labelled, names: Mapping[int, list[str]]) -> bool:
    return pattern == each.kind or any(matches(name, pattern) for name in names[id(each.parameter)])


def _names(model: nn.Module) -> dict[int, list[str]]:
    """Every name of each parameter, by its identity."""
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return found


def _unreached(every: Sequence[Labelled], names: Mapping[int, list[str]], patterns: Sequence[str]) -> Iterator[str]:
    """The problems of patterns that reach nothing."""
    split = [name.split(".") for each in every for name in names[id(each.parameter)]]
    paths = sorted({".".join(parts[:end]) for parts in split for end in range(1, len(parts) + 1)})
    for index, pattern in enumerate(patterns):
        if any(_reaches(pattern, each, names) for each in every):
            continue
        if pattern in KINDS:
            yield f"{PLACE}.{index}: no parameter that trains is one of the {pattern}. Leave it out."
        elif not paths:
            yield f"{PLACE}.{index}: {pattern!r}, and this model has no parameter that trains. Leave it out."
        else:
            yield f"{PLACE}.{index}: {pattern!r} matches no parameter that trains. {nearest_end(pattern, paths)}"
