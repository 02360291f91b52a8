"""A study that grows: another model, more seeds, a longer budget. What of its folder still counts, and what was added
when, which a reader of its statistics must know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.training.config import BUDGETS

LENGTHS = ("tokens", "seconds", "flops")
"""Kinds of budget that say how long models are trained, and not how large they are."""


@dataclass(frozen=True)
class EarlierFigure:
    """The figure of a model before the budget became longer: the mean bits per byte after so many tokens."""

    name: str
    tokens: int
    bits_per_byte: float


@dataclass(frozen=True)
class Addition:
    """Something that was added to a study.

    Attributes:
        when: date and time, ISO 8601, UTC.
        what: in words, such as ``the model gru``.
        figures: those of the shorter budget, where the budget became longer.
    """

    when: str
    what: str
    figures: tuple[EarlierFigure, ...] = ()


def growth(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str] | None:
    """The additions of ``now`` to ``before``, in words; None where it is another study.

    Args:
        before: the plain data that decided the results: ``study``, and ``runs`` by the name of the model.
        now: the same of the study that is to go on in its folder.
    """
    old, new = before["study"], now["study"]
    fixed = (old.keys() | new.keys()) - {"seeds", "budget", "length"}
    if any(old.get(key) != new.get(key) for key in fixed):
        return None
    longer, seeds = _longer(old, new), _more_seeds(old["seeds"], new["seeds"])
    if longer is None or seeds is None or not all(  # every model of before, as it was but for the length of training
            name in now["runs"] and _timeless(run, bool(longer)) == _timeless(now["runs"][name], bool(longer))
            for name, run in before["runs"].items()):
        return None
    models = [name for name in now["runs"] if name not in before["runs"]]
    named = [f"the model{'s' if len(models) > 1 else ''} {', '.join(models)}"] if models else []
    return [*named, *seeds, *longer]


def _timeless(run: Mapping[str, Any], longer: bool) -> dict[str, Any]:
    training = {key: value for key, value in run["training"].items() if not (longer and key in BUDGETS)}
    return {**run, "training": training}


def _more_seeds(before: Sequence[Any], now: Sequence[Any]) -> list[str] | None:
    """Runs of the pairs of seeds that were there keep their numbers, so new ones come after them."""
    if list(now[:len(before)]) != list(before):
        return None
    added = range(len(before) + 1, len(now) + 1)
    return [f"run{'s' if len(added) > 1 else ''} {', '.join(map(str, added))} of each model"] if added else []


def _longer(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str] | None:
    """A larger amount of the same unit; None for any other change."""
    found: list[str] = []
    for key in ("budget", "length"):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue
        amounts = _amounts(old), _amounts(new)
        if set(amounts[0]) != set(amounts[1]) or len(amounts[0]) != 1 or _rest(old) != _rest(new):
            return None
        (unit, less), (_, more) = (next(iter(each.items())) for each in amounts)
        if more <= less:
            return None
        found.append(f"a longer budget, {more:g} {unit} instead of {less:g}")
    return found


def _amounts(stated: Mapping[str, Any] | None) -> dict[str, float]:
    """The amounts of a budget or a length that say how long training is, by unit."""
    if stated is None:
        return {}
    if "kind" in stated:
        return {stated["kind"]: float(stated["amount"])} if stated["kind"] in LENGTHS else {}
    return {unit: float(amount) for unit, amount in stated.items() if amount is not None}


def _rest(stated: Mapping[str, Any] | None) -> dict[str, Any]:
    """A budget's other settings."""
    return {key: value for key, value in (stated or {}).items() if key in ("kind", "at_context", "embeddings",
                                                                          "tolerance")}
