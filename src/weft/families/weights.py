"""Rules between the tensors of a file and a model's, and the account of both: each is consumed and produced once.

A rule names tensors, with ``{layer}`` in place of an index; it applies once for each index that the model has. So a
rule for a bias applies only where the model has that bias, and export is the inverse of the same list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.errors import nearest
from weft.families.tensor_steps import Step

Shape = tuple[int, ...]

OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))
"""Suffixes of layer norms in early files, left from TensorFlow's checkpoints."""


@dataclass(frozen=True)
class Rule:
    """Some tensors of the file and some of the model, with the steps from the former to the latter."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    steps: tuple[Step, ...] = ()

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The model's tensors from the file's."""
        found = list(tensors)
        for step in self.steps:
            found = step.read(found)
        return found

    def write(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The file's tensors from the model's."""
        found = list(tensors)
        for step in reversed(self.steps):
            found = step.write(found)
        return found

    def at(self, indices: Mapping[str, str]) -> Rule:
        """The rule with its placeholders replaced by indices."""
        return Rule(tuple(name.format_map(indices) for name in self.theirs),
                    tuple(name.format_map(indices) for name in self.ours), self.steps)


def rename(theirs: str, ours: str, *steps: Step) -> Rule:
    """The rule that one tensor of the file is one tensor of the model."""
    return Rule((theirs,), (ours,), steps)


def both(theirs: str, ours: str, *steps: Step) -> list[Rule]:
    """`rename` for a weight and, where the model has one, its bias; the steps must suit both."""
    return [rename(f"{theirs}.{name}", f"{ours}.{name}", *steps) for name in ("weight", "bias")]


@dataclass(frozen=True)
class UnusedTensors:
    """Tensors in files that no model needs: a regular expression for their names, and the reason."""

    pattern: str
    reason: str


@dataclass(frozen=True)
class TensorMap:
    """The correspondence between a model's tensors and those of a file: `Rule`s without placeholders.

    Attributes:
        rules: each of the model's tensors is in ``ours`` of exactly one.
        shapes: shapes of the file's tensors, by name.
        prefix: a prefix that files may lack or add.
        junk: further tensors that files may hold.
        tied: repeated tensors of the file: the original's name by the copy's.
    """

    rules: tuple[Rule, ...]
    shapes: Mapping[str, Shape]
    prefix: str
    junk: tuple[UnusedTensors, ...]
    tied: Mapping[str, str]

    def reconcile(self, stored: Mapping[str, Shape]) -> tuple[dict[str, str], list[str]]:
        """The stored name of each expected tensor, and every problem with names and shapes."""
        places: dict[str, str] = {}
        unknown: list[str] = []
        problems: list[str] = []
        for name in sorted(stored):
            expected = next((each for each in self._spellings(name) if each in self.shapes or each in self.tied), None)
            if expected is None:
                junk = any(re.fullmatch(each.pattern, spelt) for spelt in self._spellings(name) for each in self.junk)
                unknown += [] if junk else [name]
            elif expected in places:
                problems.append(f"{name}: a second tensor for {expected}, which is {places[expected]} already.")
            else:
                places[expected] = name
        for copy, source in self.tied.items():
            if source not in places and copy in places:
                places[source] = places.pop(copy)
        missing = [name for name in self.shapes if name not in places]
        problems += [f"{name}: missing, shape {list(self.shapes[name])}." for name in missing]
        problems += [f"{name}: unexpected. {nearest(name, missing) if missing else ''}".rstrip() for name in unknown]
        problems += self._misshapen(places, stored)
        return places, problems

    def known(self, names: Iterable[str]) -> int:
        """How many of the names belong to these tensors."""
        return sum(any(each in self.shapes for each in self._spellings(name)) for name in names)

    def _misshapen(self, places: Mapping[str, str], stored: Mapping[str, Shape]) -> list[str]:
        expected = {**self.shapes, **{copy: self.shapes[source] for copy, source in self.tied.items()}}
        return [f"{name}: shape {list(stored[name])} where the configuration gives {list(expected[place])}."
                for place, name in places.items() if tuple(stored[name]) != tuple(expected[place])]

    def _spellings(self, name: str) -> list[str]:
        bare = name.removeprefix(self.prefix)
        spellings = [name, self.prefix + bare, bare]
        return [*spellings, *(each.removesuffix(old) + new for each in spellings for old, new in OLD_NAMES
                              if each.endswith(old))]


def account(rules: Iterable[Rule], own: Mapping[str, Tensor], *, prefix: str = "", junk: tuple[UnusedTensors, ...] = (),
            tied: Mapping[str, str] | None = None) -> TensorMap:
    """The account of a model's tensors.

    Args:
        own: the model's tensors by name, each once; their values do not matter.
    """
    applied = list[Rule]()
    for rule in rules:  # once for each set of indices for which the model has the tensors
        pattern = re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d+)", re.escape(rule.ours[0])))
        applied += [rule.at(match.groupdict()) for match in map(pattern.fullmatch, own) if match]
    producers = [name for rule in applied for name in rule.ours]
    assert sorted(producers) == sorted(own), (
        f"no rule or more than one for {sorted(set(own) ^ set(producers)) or 'some tensor'}")
    shapes: dict[str, Shape] = {}
    for rule in applied:
        with torch.no_grad():
            written = rule.write([torch.empty(own[name].shape, device="meta") for name in rule.ours])
        for name, tensor in zip(rule.theirs, written, strict=True):
            assert name not in shapes, f"two rules write {name}"
            shapes[name] = tuple(tensor.shape)
    # A tensor that the model has as its own is no copy, whatever other models of the family have there.
    repeated = {copy: source for copy, source in (tied or {}).items() if source in shapes and copy not in shapes}
    return TensorMap(tuple(applied), shapes, prefix, junk, repeated)
