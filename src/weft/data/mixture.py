"""Mixtures of sources: how many tokens of each are read, and how many times over."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from pydantic import Field

from weft.core.errors import InputError
from weft.core.part_config import Settings
from weft.core.strict_json import Record


class SourceSettings(Settings):
    """A source of a mixture.

    Attributes:
        tokens: tokens that it holds.
        weight: its share of what is read, in any unit; weights are divided by their sum.
    """

    tokens: float = Field(gt=0, allow_inf_nan=False)
    weight: float = Field(ge=0, allow_inf_nan=False)


class MixtureSettings(Settings):
    """A mixture of one's own.

    Attributes:
        sources: by name.
        target: tokens that are read in all; None: it must be given beside the file.
        max_epochs: the most times that any source is read; None: as often as the weights say.
    """

    sources: dict[str, SourceSettings] = Field(min_length=1)
    target: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_epochs: float | None = Field(default=None, gt=0, allow_inf_nan=False)


@dataclass(frozen=True)
class Source(Record):
    """A source of a mixture.

    Attributes:
        name: of the source.
        size: what it holds, in the unit of its mixture.
        weight: its share of what is read, as given or published; None: in proportion to its size.
        epochs: how often it is read, as published; None where nothing is.
        max_epochs: how often it is read at most; None: there is no cap of its own.
    """

    name: str
    size: float
    weight: float | None = None
    epochs: float | None = None
    max_epochs: float | None = None


@dataclass(frozen=True)
class Mixture(Record):
    """Sources with weights.

    Attributes:
        name: of the mixture.
        unit: in which sizes are given: ``tokens`` or ``GiB``.
        origin: where the numbers come from.
        target: what is read in all, in that unit; None: not said.
        sources: in the order in which they are given.
        max_epochs: cap on the epochs of every source; None: there is none.
    """

    name: str
    unit: str
    origin: str
    target: float | None
    sources: tuple[Source, ...]
    max_epochs: float | None = None

    def weights(self) -> tuple[float, ...]:
        """Weights as given; where none is, the share of each size."""
        whole = sum(source.size for source in self.sources)
        return tuple(source.size / whole if source.weight is None else source.weight for source in self.sources)


@dataclass(frozen=True)
class PlannedSource(Record):
    """The amount that is read of a source.

    Attributes:
        source: as given.
        weight: as given, or the share of its size.
        implied: epochs that this weight implies as it stands, even if all weights do not add up to one:
            ``weight * target / size``.
        share: of what is read: the weight over the sum of all, after the cap.
        read: what is expected to be read, in the mixture's unit: ``share * target``.
        epochs: ``read / size``.
        capped: whether the cap lowered its share.
    """

    source: Source
    weight: float
    implied: float
    share: float
    read: float
    epochs: float
    capped: bool


@dataclass(frozen=True)
class MixturePlan(Record):
    """The amounts that a mixture reads of its sources.

    Attributes:
        mixture: as given.
        target: what is read in all, in the mixture's unit.
        max_epochs: cap on the epochs of every source; None: there is none.
        sum_of_weights: as given.
        sources: in the mixture's order.
    """

    mixture: Mixture
    target: float
    max_epochs: float | None
    sum_of_weights: float
    sources: tuple[PlannedSource, ...]


def own_mixture(settings: MixtureSettings, name: str) -> Mixture:
    """The mixture that a file describes; its path is the name."""
    sources = tuple(Source(each, source.tokens, source.weight) for each, source in settings.sources.items())
    return Mixture(name, "tokens", name, settings.target, sources, settings.max_epochs)


def plan_mixture(mixture: Mixture, target: float | None = None, max_epochs: float | None = None) -> MixturePlan:
    """The amounts that are expected to be read of each source.

    A source whose weight asks for more epochs than the cap allows is read as often as the cap allows, and what it does
    not take is divided among the others in proportion to their weights, again and again until none is above the cap.

    Args:
        mixture: with its own target and cap.
        target: what is read in all, in the mixture's unit; None: its own.
        max_epochs: None: its own cap, if it has one.

    Raises:
        InputError: there is no target; a number is not positive; all weights are zero; or the sources with weights hold
            less than the target even at the cap.
    """
    target = mixture.target if target is None else target
    if target is None:
        raise InputError("nothing says how many tokens are read in all.", where=mixture.name,
                         remedy="Add target to the file, or give --target.")
    max_epochs = mixture.max_epochs if max_epochs is None else max_epochs
    for name, value in (("target", target), ("max_epochs", max_epochs)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{value}, which must be positive and finite.", where=name,
                             remedy="Give a positive number.")
    weights = mixture.weights()
    if not sum(weights) > 0:
        raise InputError("all weights are zero.", where=mixture.name, remedy="Give one source a weight at least.")
    shares, capped = _capped(mixture, weights, target, max_epochs)
    sources = tuple(PlannedSource(source, weight, weight * target / source.size, share, share * target,
                                  share * target / source.size, source.name in capped)
                    for source, weight, share in zip(mixture.sources, weights, shares, strict=True))
    return MixturePlan(mixture, target, max_epochs, sum(weights), sources)


def _capped(mixture: Mixture, weights: tuple[float, ...], target: float,
            max_epochs: float | None) -> tuple[list[float], set[str]]:
    """Shares that add up to one, and the sources whose share the cap lowered."""
    caps = [min((cap for cap in (max_epochs, source.max_epochs) if cap is not None), default=inf)
            for source in mixture.sources]
    most = [cap * source.size / target for cap, source in zip(caps, mixture.sources, strict=True)]
    reachable = sum(each for each, weight in zip(most, weights, strict=True) if weight)
    if reachable < 1:
        each = "their" if max_epochs is None else f"{max_epochs:g}"
        raise InputError(f"at most {each} epochs of the sources that have a weight are "
                         f"{reachable * target:.6g} {mixture.unit}, less than the {target:.6g} to read.",
                         where="max_epochs", remedy="Raise the cap, lower the target, or add sources.")
    held: set[int] = set()
    while True:
        free = sum(weight for place, weight in enumerate(weights) if place not in held)
        left = 1 - sum(most[place] for place in held)
        shares = [most[place] if place in held else weight * left / free if weight else 0.0
                  for place, weight in enumerate(weights)]
        above = {place for place, share in enumerate(shares) if place not in held and share > most[place] * (1 + 1e-12)}
        if not above:
            return shares, {mixture.sources[place].name for place in held}
        held |= above
