"""The parameters and costs of a model, read from its shapes alone, and the widths with which it meets a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.memory import state_sizes
from weft.analysis.parts import count_parameters
from weft.analysis.shapes import shape_of
from weft.core.base_model import built_empty
from weft.core.declarations import Trait
from weft.core.errors import ConfigError, UserError
from weft.core.layer import EMBEDDINGS, LOGITS, traits_of
from weft.core.model import LanguageModel, ModelConfig, language_model
from weft.training.config import RunConfig
from weft.training.overrides import apply_overrides
from weft.training.rates import model_flops_per_token

Widths: TypeAlias = dict[str, int]
Measure: TypeAlias = Callable[[Mapping[str, int]], float]
"""The budget's quantity for a model of those widths; a UserError where they do not fit each other."""

SCALED = ("d_model", "d_ff", "d_hidden", "d_embedding")
LARGEST = 2**18
FINE = 0.35
"""How far the widths after the first may leave their proportion to it, as a share, to come closer to the budget."""


@dataclass(frozen=True)
class ModelSize:
    """The size and costs of a model before it is trained.

    Attributes:
        parameters: all, shared ones once.
        embeddings: token embeddings and readout among them.
    """

    parameters: int
    embeddings: int


def shapes(config: ModelConfig) -> tuple[LanguageModel, FakeTensorMode]:
    """The model without its numbers."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return language_model(shape_of(config, mode, None), "comparing"), mode


def size_of(config: ModelConfig) -> ModelSize:
    """Parameters of a model; none of one that is counted."""
    model = built_empty(config)
    if Trait.NOT_DIFFERENTIABLE in traits_of(model):
        return ModelSize(0, 0)
    counted = count_parameters(model)
    ends = sum(part.numbers for part in counted.parts if part.part.endswith((EMBEDDINGS, LOGITS)))
    return ModelSize(counted.total, ends)


def is_trained(config: ModelConfig) -> bool:
    """Whether gradients train the model; others are counted."""
    return Trait.NOT_DIFFERENTIABLE not in traits_of(built_empty(config))


def flops_per_token(run: RunConfig) -> float:
    """Operations of training, forward and backward, per token of a window of the run's context."""
    return model_flops_per_token(shapes(run.model)[0], run.context)


def state_bytes(config: ModelConfig, contexts: list[int]) -> dict[int, int]:
    """Bytes of the state of one row after so many tokens, as far as the model reaches."""
    model, mode = shapes(config)
    reach = model.limit()
    within = [context for context in contexts if reach is None or context <= reach]
    states = state_sizes(model, mode, 1, within)
    return {} if states is None else {each.context: each.bytes for each in states.sizes}


@dataclass(frozen=True)
class WidthPlan:
    """The field that is solved for, and its target.

    Attributes:
        first: the key that all others follow.
        multiple: of which the first width must be.
        ratios: of each other key to the first.
    """

    first: str
    multiple: int
    ratios: dict[str, float]

    def widths(self, first: int, scale: float = 1.0) -> Widths:
        """All widths for a first one, the others ``scale`` times their proportion."""
        return {self.first: first, **{key: max(1, round(first * ratio * scale)) for key, ratio in self.ratios.items()}}


def width_plan(plain: Mapping[str, Any], stated: Mapping[str, float] | None, multiple: int | None) -> WidthPlan | None:
    """The field to solve for in a run's plain data; None when there is none.

    Args:
        stated: keys with their proportions; None: those of the configuration itself.
        multiple: of the first width; None: twice the least common multiple of all numbers of heads.

    Raises:
        ConfigError: a key that the configuration does not have.
    """
    ratios = dict(_own_widths(plain["model"], "model")) if stated is None else dict(stated)
    if not ratios:
        return None
    unknown = [key for key in ratios if not isinstance(look_up(plain, key), int)]
    if unknown:
        raise ConfigError([f"width.{key}: no whole number stands there in the configuration. State one, or take the "
                           "key out." for key in unknown])
    first, *others = sorted(ratios, key=lambda key: key != "model.d_model") if stated is None else list(ratios)
    heads = [number for number in _find(plain["model"], "n_heads") if number > 0]
    # Rotary positions turn pairs of features, so that a head's size must be even.
    whole = multiple or (2 * math.lcm(*heads) if heads else 1)
    return WidthPlan(first, whole, {key: ratios[key] / ratios[first] for key in others})


def solve(plan: WidthPlan, measure: Measure, target: float, tolerance: float, *, own: int, unit: str,
          where: str) -> Widths:
    """The widths whose quantity is nearest to ``target``.

    The first width is searched alone, then the others leave their proportion a little to come closer.

    Args:
        measure: of widths; rising in each of them.
        target: of ``measure``.
        tolerance: as a share of ``target``.
        own: the first width in the configuration, where two come equally close.
        unit: of ``measure``, for the message.

    Raises:
        ConfigError: nothing within the tolerance; the message names the nearest, or the smallest and the largest.
    """
    known: dict[tuple[int, ...], float | None] = {}

    def value(widths: Widths) -> float | None:
        key = tuple(widths.values())
        if key not in known:
            try:
                known[key] = measure(widths)
            except UserError:
                known[key] = None
        return known[key]

    below, above = _bracket(plan, value, target, where)
    candidates = [plan.widths(width) for width in (below, above) if width]
    candidates += [fine for width in (below, above) if width for fine in _fine(plan, width, value, target)]
    scored = [(abs(found - target), abs(widths[plan.first] - own), widths, found) for widths in candidates
              if (found := value(widths)) is not None]
    best = min(scored, key=lambda each: each[:2], default=None)
    if best is None or best[0] > tolerance * target:
        raise ConfigError([_unreachable(plan, scored, target, tolerance, unit, where)])
    return best[2]


def apply_widths(plain: dict[str, Any], widths: Mapping[str, int]) -> dict[str, Any]:
    """Plain data of a run with those widths."""
    return apply_overrides(plain, [f"{key}={width}" for key, width in widths.items()])


def _bracket(plan: WidthPlan, value: Callable[[Widths], float | None], target: float, where: str) -> tuple[int, int]:
    """The largest width at or under the target (0 if there is none), and the next one (0 beyond the largest)."""
    low, high = 0, plan.multiple
    smallest = None
    while high <= LARGEST:
        found = value(plan.widths(high))
        if found is not None and found == smallest and high > 64 * plan.multiple:
            return low, 0  # the width changes nothing
        smallest = found if smallest is None else smallest
        if found is None and low == 0 and high > 64 * plan.multiple:
            raise ConfigError([f"{where}: no width can be built in proportion to {plan.first}. State `width` and "
                               "`multiple` for this model."])
        if found is not None and found > target:
            break
        low, high = high if found is not None else low, 2 * high
    else:
        return low, 0
    while high - low > plan.multiple:
        middle = (low + high) // 2 // plan.multiple * plan.multiple
        found = value(plan.widths(middle))
        low, high = (middle, high) if found is None or found <= target else (low, middle)
    return low, high


def _fine(plan: WidthPlan, first: int, value: Callable[[Widths], float | None], target: float) -> Iterator[Widths]:
    """The two neighbours of the target when only the widths after the first move."""
    if not plan.ratios:
        return
    span = first * max(plan.ratios.values())
    low, high = math.ceil(span * (1 - FINE)), math.floor(span * (1 + FINE))
    while high - low > 1:
        middle = (low + high) // 2
        found = value(plan.widths(first, middle / span))
        low, high = (middle, high) if found is not None and found <= target else (low, middle)
    yield from (plan.widths(first, each / span) for each in (low, high))


def _unreachable(plan: WidthPlan, scored: list[tuple[float, int, Widths, float]], target: float, tolerance: float,
                 unit: str, where: str) -> str:
    under = max((each for each in scored if each[3] <= target), key=lambda each: each[3], default=None)
    over = min((each for each in scored if each[3] > target), key=lambda each: each[3], default=None)
    near = [f"{side} {each[3]:,.0f} ({', '.join(f'{key}={width}' for key, width in each[2].items())})"
            for side, each in (("the nearest below is", under if over or not under else None),
                               ("the largest tried is", under if not over else None),
                               ("the nearest above is" if under else "the smallest is", over)) if each]
    return (f"{where}: no width gives {target:,.0f} {unit} within {tolerance:.1%}; {'; '.join(near) or 'none builds'}. "
            "Change the budget, raise budget.tolerance, or state `width` and `multiple` for this model.")


def _own_widths(place: Any, path: str) -> Iterator[tuple[str, float]]:
    """Widths that a configuration states, by dotted key."""
    if isinstance(place, Mapping):
        for key, inner in place.items():
            here = f"{path}.{key}"
            if key in SCALED and type(inner) is int:
                yield here, float(inner)
            else:
                yield from _own_widths(inner, here)
    elif isinstance(place, list):
        for index, inner in enumerate(place):
            yield from _own_widths(inner, f"{path}.{index}")


def _find(place: Any, name: str) -> Iterator[int]:
    if isinstance(place, Mapping):
        for key, inner in place.items():
            if key == name and type(inner) is int:
                yield inner
            else:
                yield from _find(inner, name)
    elif isinstance(place, list):
        for inner in place:
            yield from _find(inner, name)


def look_up(plain: Any, key: str) -> Any:
    """The value under a dotted key; None where there is none."""
    for step in key.split("."):
        if isinstance(plain, list) and step.isdecimal() and int(step) < len(plain):
            plain = plain[int(step)]
        elif isinstance(plain, Mapping):
            plain = plain.get(step)
        else:
            return None
    return plain
