"""`Declared`: what a part declares about itself, so that analyses, laws and training do not depend on its class.

Everything has a default that is right for a part that declares nothing. A plugin's part that declares what applies to
it is counted, planned, checked and trained like Weft's own. What few parts have (`Adjustable`, `StepHooks`,
`HasInferenceForm`) is asked for by class.

`Points`: the values of one part that active probes read (see `weft.core.probes`).

Channels: named values that a layer gives to later layers of the same call.

They serve value residuals (Zhou et al. 2024) and keys and values shared across layers (Brandon et al. 2024; YOCO, Sun
et al. 2024). A layer declares the channels that it gives (`Declared.gives`) and returns their values in `Output.given`;
a later one declares those that it takes (`Declared.takes`) and reads a value with `Span.take`. Blocks and stacks pass
the values on. A stack is refused when it is built if a channel would have no value when it runs. A channel exists
within one call only: what later calls need belongs in the state of a layer.

Traits: the closed list of ways in which a part may lawfully do less than the law.

A trait replaces one law by a weaker one that also runs (defined in `weft.laws`); there is no skip list. A test pins
which parts have which trait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from torch import Tensor, nn

from weft.core.errors import ConfigError, nearest
from weft.core.history import Lookback


class Trait(Enum):
    """Each value is the reason that the catalogue prints."""

    BIDIRECTIONAL = "attends to later tokens, so it has no state; padding and packing invariance are checked instead"
    BATCH_STATISTICS = "in training its output depends on the whole batch; the laws hold in evaluation"
    DECLARED_LENGTH = "its rotation depends on the document's length, so a state must be started with that length"
    NOT_DIFFERENTIABLE = "fitted by counting, not by gradients; the laws' gradient half does not apply"
    TOKENS_ONLY = "reads token ids from a bounded context, so its state is the ids themselves"
    DISCRETE_CHOICE = ("makes a discrete choice for each token, so a near tie may be resolved differently in another "
                       "dtype; later tokens of its row are then not compared")
    HOST_CHOICE = ("reads values on the host to choose its operations, so `torch.compile` traces it as several "
                   "graphs, whose outputs must be the same")
    PREFIX_FIRST = "attends in both directions inside a prefix, which must therefore lie within one call"


class Channel(NamedTuple):
    """A declaration that a layer gives or takes a value.

    Attributes:
        name: of the channel; a taker reads the value of the last layer before it that gave one of that name.
        sizes: numbers in which giver and taker must agree, for example heads and features of a token's values.
    """

    name: str
    sizes: tuple[int, ...] = ()


class LayerChannels(NamedTuple):
    """The channels of one layer, with the layer's path in the configuration."""

    place: str
    gives: tuple[Channel, ...]
    takes: tuple[Channel, ...]


def untaken(layers: Iterable[LayerChannels]) -> tuple[Channel, ...]:
    """The channels that layers, run in this order, take without an earlier one of them giving it."""
    available, missing = set[str](), list[Channel]()
    for layer in layers:
        missing += [channel for channel in layer.takes if channel.name not in available]
        available |= {channel.name for channel in layer.gives}
    return tuple(dict.fromkeys(missing))


def require_given(layers: Iterable[LayerChannels]) -> None:
    """Refuse layers, in the order in which they run, if one takes a channel that no earlier one gives. Raises
    `ConfigError`: every taker without a giver, every giver after its taker, and all sizes that differ."""
    problems = list(_problems(list(layers)))
    if problems:
        raise ConfigError(problems)


def _problems(layers: list[LayerChannels]) -> Iterator[str]:
    for index, taker in enumerate(layers):
        for channel in taker.takes:
            earlier, later = ([(each.place, given) for each in some for given in each.gives
                               if given.name == channel.name] for some in (layers[:index], layers[index:]))
            if earlier and earlier[-1][1].sizes != channel.sizes:
                place, other = earlier[-1]
                yield (f"{taker.place}: takes {channel.name!r} of sizes {channel.sizes}, and {place} gives it of sizes "
                       f"{other.sizes}. Give both the same sizes.")
            elif later and not earlier:
                yield (f"{taker.place}: takes {channel.name!r}, which {later[0][0]} gives only after it. Put that one "
                       "before this one.")
            elif not earlier:
                known = [given.name for each in layers for given in each.gives]
                hint = nearest(channel.name, known) if known else "None gives anything."
                yield (f"{taker.place}: takes {channel.name!r}, which no layer gives. {hint} Put a layer that gives it "
                       "before this one.")


Taker: TypeAlias = Callable[[Tensor], None]
"""A function that is called with each tensor of a point."""


class Points:
    """The points of one part that probes read. The part has them as `Adjustable.asked` and passes each value on::

        if self.asked is not None and "weights" in self.asked:
            self.asked.give("weights", weights)
    """

    def __init__(self) -> None:
        self._takers: dict[str, list[Taker]] = {}

    def __contains__(self, point: str) -> bool:
        """Whether a probe reads ``point``, so that its value has to be computed."""
        return point in self._takers

    def __len__(self) -> int:
        """The number of points that are read."""
        return len(self._takers)

    def give(self, point: str, value: Tensor) -> None:
        """Pass ``value`` to the probes that read ``point``, if there are any."""
        for take in self._takers.get(point, ()):
            take(value)

    def add(self, point: str, taker: Taker) -> None:
        """Call ``taker`` with each value of ``point`` from now on."""
        self._takers.setdefault(point, []).append(taker)

    def remove(self, point: str, taker: Taker) -> None:
        """Undo `add`."""
        self._takers[point].remove(taker)
        if not self._takers[point]:
            del self._takers[point]


Kept: TypeAlias = Literal["everything", "costly", "inputs"]
"""Which activations are kept for the backward pass: all that it reads; only those that are not cheap to recompute; or
only the input of each part between two boundaries, which is then run again."""


class QueryKeyPairs(Protocol):
    """The pairs of a query and a key that an operation computes, for example a mask; equal and hashable by value."""

    def share(self, steps: int) -> float:
        """The share of all pairs, in a document of ``steps`` tokens, that are among them."""

    def widths(self) -> Mapping[str, int]:
        """How far each of its windows reaches from the query, in tokens, the query's own included, by what the window
        is called."""

    def places(self) -> Mapping[str, int]:
        """The last of the tokens that each of its rules names by their place in a document, counted from 0, by what the
        rule is called."""

    def undeclared(self) -> int:
        """Pairs of a short document at which a head differs from the one that it declares to be alike; 0 if its
        declaration is right."""

    def __hash__(self) -> int:
        """A hash that is equal for equal rules."""


@dataclass(frozen=True)
class WidthRoles:
    """The tensors of a part that follow the width of the model, besides its linear maps, vectors and tables, whose
    roles are known from their shapes (`weft.models.width_transfer`). Its matrices start with a deviation that falls
    with the root of their inputs, or with a constant one where they are among ``outputs``; its vectors start
    independently of the width.

    Attributes:
        of: the class for which this holds; a subclass, which may compute something else, declares it anew.
        products: attributes by which the part multiplies products of two of its vectors, each with their number of
            features, such as the scale of attention's scores.
        outputs: its own matrices [outputs, width] from the width to the model's outputs, each with the attribute by
            which the part multiplies their inputs or outputs.
        matrices: its own matrices [..., outputs, inputs] that multiply vectors as linear maps do.
    """

    of: type
    products: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    matrices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The declarations of a part about itself alone, and not about those in it, unless stated otherwise.

    Attributes:
        role: the heading under which its parameters, operations and memory are listed: "attention scores", "norms",
            "feed-forward", ... Empty: the heading that the enclosing part gives it (``child_roles``), or else that
            part's.
        child_roles: the roles of modules inside that declare none themselves, by their path from here.
        prefix: a word before the roles of the parts in it, and the heading of its own parameters: "encoder".
        traits: the ways in which it does less than the law.
        own_law: whether its traits do not weaken the model that contains it: an encoder beside a causal decoder.
        attended: the pairs of a query and a key that its own operations need: a mask. Operators that cannot leave pairs
            out compute all of them. None: its operations do not work on pairs.
        facts: the facts of tokens that it reads (`weft.core.clock.Facts`), by name, each with the number of most recent
            tokens, the newest included, of which it reads it; None: all.
        lookback: the earlier tokens whose positions it reads; None if it reads none.
        borders: lengths, in tokens, beyond which it computes in another way: the reach of its window or convolution,
            the chunk of its scan. The laws run past the longest in a model.
        source_width: features of the encoded source (`weft.core.span.Memory`) that it reads; None if it reads none.
        gives: the channels whose values a layer returns in `Output.given` for later ones (`weft.core.declarations`).
        takes: the channels of earlier layers whose values a layer reads with `Span.take`.
        joins_pieces: whether a layer's `run` takes what it needs of the pieces of other processes by itself
            (`Span.pieces`). Any other layer with a state waits for that of the process before (`weft.core.pieces`).
        joins_without_state: whether that holds for calls without a state too, in which tokens read later ones.
        idle_parameters: the number of parameters, in it and the parts in it, that one token does not use: those of
            experts to which it is not routed.
        holds_table: whether its own parameters are tables of which rows are looked up, such as vectors of positions:
            optimisers treat them as they do embeddings.
        dynamics: its parameters that determine how a state evolves, whatever their shape: modes, rates, time steps.
            Weight decay would pull them to other dynamics, not to simpler ones, so optimisers do not apply it to them.
        exact: its parameters and buffers that a cast to narrower floats leaves in float32 or wider, because the
            computation magnifies their rounding error: the angle of a mode is multiplied by the number of tokens.
            None: its ``dynamics``.
        same_dtype: its parameters and buffers whose dtype no cast changes: counts, numbers that a configuration fixes.
        wide_in_training: its parameters that training in narrow floats keeps in float32 or wider for computing: those
            near 1, where a step of an optimiser is smaller than the spacing of bfloat16. They must not widen what the
            part returns.
        width_roles: what of it follows the width of the model, so that it can be in a model whose settings transfer
            from one width to another (muP); None: it is not known, and such a model is refused.
        remarks: what the figures of a plan do not show of it, in whole sentences.
    """

    role: str = ""
    child_roles: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    traits: frozenset[Trait] = frozenset()
    own_law: bool = False
    attended: QueryKeyPairs | None = None
    facts: Mapping[str, int | None] = field(default_factory=dict)
    lookback: Lookback | None = None
    borders: tuple[int, ...] = ()
    source_width: int | None = None
    gives: tuple[Channel, ...] = ()
    takes: tuple[Channel, ...] = ()
    joins_pieces: bool = False
    joins_without_state: bool = False
    idle_parameters: int = 0
    holds_table: bool = False
    dynamics: tuple[nn.Parameter, ...] = ()
    exact: tuple[Tensor, ...] | None = None
    same_dtype: tuple[Tensor, ...] = ()
    wide_in_training: tuple[nn.Parameter, ...] = ()
    width_roles: WidthRoles | None = None
    remarks: tuple[str, ...] = ()


class Adjustable(nn.Module):
    """A part with an attribute that others set: probes, the laws, training.

    Attributes:
        points: names of the values that a probe can read besides its output (`weft.core.probes`).
        asked: those of its points that probes currently read; None without a probe.
        dropout_rate: the probability with which it drops something in training. It is read in every call, so that a
            part whose rate is set to 0 drops nothing.
        kept_activations: which activations are kept for the backward pass of the parts in it, at whose inputs
            recomputation can start; None for a part without such boundaries. Training sets it.
    """

    points: ClassVar[tuple[str, ...]] = ()
    asked: Points | None = None
    dropout_rate: float = 0.0
    kept_activations: Kept | None = None


class StepHooks:
    """A part that does something before or after a step of training, which evaluation and decoding never ask for."""

    def begin_step(self, step: int, seed: int) -> None:
        """Prepare for a step of training, before its first batch. It may change buffers that checkpoints hold, such as
        random features, as a pure function of its arguments, so that a resumed run goes on exactly.

        Args:
            step: of the run, from 0.
            seed: for random numbers, another one for every run's seed, step and part of the model.
        """

    def after_step(self, total: Callable[..., list[float]]) -> bool:
        """Change what training changes otherwise than by gradients, once after every step of the optimiser; return
        whether anything was. ``total(*values)`` sums each value over all processes, which must all call it alike."""
        return False


class HasInferenceForm(ABC):
    """A part with another form for calls without gradients."""

    @abstractmethod
    def inference(self) -> nn.Module:
        """This part in the form that is fastest without gradients, with equal outputs and losses and the same state, so
        that either continues the state of the other.

        It is this part itself if there is nothing to gain, or if a child that the form would replace is not
        `unadapted`. It may share weights with this part, which does not change. `weft.linear.inference` converts whole
        models. It ignores an inherited method, because a subclass may compute something else."""
