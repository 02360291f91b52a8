"""Mixtures of sources: how many tokens of each are read, and how many times over.

Mixtures that were published, with the numbers of their tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

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
        target: what is read in all, in the mixture's unit.
        max_epochs: cap on the epochs of every source; None: there is none.
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


BILLION = 1e9

GPT3 = Mixture(
    "gpt3", "tokens", "Brown et al. 2020, \"Language Models are Few-Shot Learners\", table 2.2", 300 * BILLION, (
        Source("Common Crawl (filtered)", 410 * BILLION, 0.60, 0.44),
        Source("WebText2", 19 * BILLION, 0.22, 2.9),
        Source("Books1", 12 * BILLION, 0.08, 1.9),
        Source("Books2", 55 * BILLION, 0.08, 0.43),
        Source("Wikipedia", 3 * BILLION, 0.03, 3.4)))

PILE = Mixture(
    "pile", "GiB", "Gao et al. 2020, \"The Pile: An 800GB Dataset of Diverse Text for Language Modeling\", table 1",
    1254.20, (
        Source("Pile-CC", 227.12, 0.1811, 1.0), Source("PubMed Central", 90.27, 0.1440, 2.0),
        Source("Books3", 100.96, 0.1207, 1.5), Source("OpenWebText2", 62.77, 0.1001, 2.0),
        Source("ArXiv", 56.21, 0.0896, 2.0), Source("Github", 95.16, 0.0759, 1.0),
        Source("FreeLaw", 51.15, 0.0612, 1.5), Source("Stack Exchange", 32.20, 0.0513, 2.0),
        Source("USPTO Backgrounds", 22.90, 0.0365, 2.0), Source("PubMed Abstracts", 19.26, 0.0307, 2.0),
        Source("Gutenberg (PG-19)", 10.88, 0.0217, 2.5), Source("OpenSubtitles", 12.98, 0.0155, 1.5),
        Source("Wikipedia (en)", 6.38, 0.0153, 3.0), Source("DM Mathematics", 7.75, 0.0124, 2.0),
        Source("Ubuntu IRC", 5.52, 0.0088, 2.0), Source("BookCorpus2", 6.30, 0.0075, 1.5),
        Source("EuroParl", 4.59, 0.0073, 2.0), Source("HackerNews", 3.90, 0.0062, 2.0),
        Source("YoutubeSubtitles", 3.73, 0.0060, 2.0), Source("PhilPapers", 2.38, 0.0038, 2.0),
        Source("NIH ExPorter", 1.89, 0.0030, 2.0), Source("Enron Emails", 0.88, 0.0014, 2.0)))

DOLMA = Mixture(
    "dolma", "tokens", "Soldaini et al. 2024, \"Dolma: an Open Corpus of Three Trillion Tokens for Language Model "
    "Pretraining Research\", table 1 (tokens of Llama's tokenizer; no weights are given there)", 3059 * BILLION, (
        Source("Common Crawl", 2479 * BILLION), Source("GitHub", 411 * BILLION), Source("Reddit", 89 * BILLION),
        Source("Semantic Scholar", 70 * BILLION), Source("Project Gutenberg", 6.0 * BILLION),
        Source("Wikipedia, Wikibooks", 4.3 * BILLION)))

PUBLISHED: Mapping[str, Mixture] = MappingProxyType({each.name: each for each in (GPT3, PILE, DOLMA)})
"""By name. Targets are what the tables' epochs refer to; for Dolma, the size of the whole as printed."""
