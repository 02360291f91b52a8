"""Base of all blocks: a tuple of layers on one clock, dropout, and residual connections that can be switched off.

The wiring of a block as data: which norms and layers a residual stream passes, for drawings and for tests.

    entering norm -> (norm before -> layer -> norm after) of each branch -> sum with what skips them -> norm after

Numbers are indices of a block's ``norms`` and ``layers``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.config import PartField, rule
from weft.core.declarations import Adjustable, Declared, LayerChannels, Trait, untaken
from weft.core.errors import ConfigError
from weft.core.layer import Layer, LayerState, traits_of
from weft.core.part_config import Dims, ModuleConfig, Shared
from weft.core.span import Given, Loss, Memory, Output, Span
from weft.norms.base import NormConfig
from weft.norms.layernorm import LayerNormConfig
from weft.ops.dropout import Dropout


@dataclass(frozen=True)
class BlockState(LayerState):
    """The states of the layers inside, all on one clock."""

    composite: ClassVar[bool] = True

    layers: tuple[LayerState, ...]


class BlockConfig(ModuleConfig):
    """Base of block configurations.

    Attributes:
        layers: mixers and feed-forwards, in order.
        norm: built once for every place of the block with a norm.
        dropout: probability with which a number of each layer's output is dropped in training.
        branch_scale: a factor of each layer's output before it is added to the stream (Granite).
        residual: False to study a model without residual connections.
    """

    group: ClassVar[str] = "block"

    layers: list[Annotated[ModuleConfig, PartField("mixer", "feedforward")]]
    norm: Annotated[NormConfig, PartField("norm")] = LayerNormConfig()
    dropout: float = Field(default=0.0, ge=0, lt=1)
    branch_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    residual: bool = True

    def in_words(self, d_model: int = 0) -> str:
        return ", ".join(layer.in_words(d_model) for layer in self.layers)

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.layers:
            raise rule("layers", "a block without layers does nothing.", "List at least one mixer or feed-forward.")
        return self

    def build(self, dims: Dims) -> Block:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")

    @classmethod
    def examples(cls) -> list[Self]:
        attention = {"kind": "attention", "n_heads": 2}
        return [cls.model_validate({"layers": [attention, {"kind": "mlp", "d_ff": 12}], "norm": "rmsnorm"}),
                cls.model_validate({"layers": [{"kind": "lstm"}, "channel_mix"], "residual": False}),
                cls.model_validate({"layers": ["s4d", attention, {"kind": "mlp", "d_ff": 12}], "dropout": 0.1,
                                    "branch_scale": 0.3})]


def build_all(parts: list[tuple[tuple[int | str, ...], ModuleConfig]], dims: Dims, *,
              numbered: bool = False) -> list[Layer]:
    """Build parts, each for dimensions with its path.

    Args:
        parts: with the path of each in the configuration.
        dims: of the model or block.
        numbered: whether the parts are a model's blocks, whose dimensions include their index and number.

    Raises:
        ConfigError: the problems of all parts.
    """
    built: list[Layer] = []
    problems: list[str] = []
    for index, (place, part) in enumerate(parts):
        here = replace(dims, layer=index, n_layers=len(parts)) if numbered else dims
        try:
            layer = part.build(here.at(*place))
        except ConfigError as error:
            problems += error.problems
            continue
        if not isinstance(layer, Layer):
            raise dims.at(*place).problem("", f"{part.kind!r} builds a {type(layer).__name__}, which is no layer.",
                                          "Use a mixer, a feed-forward or a block.")
        if dims.predicts and Trait.BIDIRECTIONAL in traits_of(layer):
            problems += _not_causal(part, dims.at(*place)).problems
        built.append(layer)
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return built


def _not_causal(part: ModuleConfig, dims: Dims) -> ConfigError:
    mask = dict(part).get("mask")
    cause = f"{part.kind!r}" if mask is None else f"the mask {mask!r}"
    return dims.problem("" if mask is None else "mask", f"{cause} lets a token see later ones. A decoder predicts "
                        "the next token, which it would then see beforehand.",
                        "Give a causal mask, such as 'causal', 'causal & window(64)' or 'causal | prefix', or build an "
                        "encoder.")


def _role(part: ModuleConfig, dims: Dims) -> str:
    """The role of a layer that declares none: "feed-forward", or the kind of a mixer."""
    config = dims.shared.configs.get(part.shared) if isinstance(part, Shared) and dims.shared is not None else part
    assert config is not None, "references to parts that do not exist are refused before"
    return "feed-forward" if config.group == "feedforward" else config.kind


class Composite(Layer, Adjustable):
    """A layer that calls other layers."""

    state_type: type[LayerState] = BlockState

    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        inside = [layer.declares() for layer in layers]
        self.channels = LayerChannels("", tuple(channel for each in inside for channel in each.gives),
                                      untaken(LayerChannels("", each.gives, each.takes) for each in inside))

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> BlockState:
        return BlockState(clock, tuple([layer.start(clock, capacity=capacity, dtype=dtype, memory=memory)
                                        for layer in self.children_layers()]))

    def declares(self) -> Declared:
        """It gives the channels of all its layers, and takes those that none of its earlier layers gives."""
        return Declared(gives=self.channels.gives, takes=self.channels.takes)

    def ends(self, places: Sequence[str]) -> Iterator[LayerChannels]:
        """The channels of every layer inside, in the order in which they run.

        Args:
            places: the path of each of its layers.
        """
        for place, layer in zip(places, self.children_layers(), strict=True):
            if isinstance(layer, Composite):
                yield from layer.ends([f"{place}.layers.{index}" for index in range(len(layer.layers))])
            else:
                declared = layer.declares()
                yield LayerChannels(place, declared.gives, declared.takes)

    def children_layers(self) -> list[Layer]:
        """The layers in order, typed."""
        return [layer for layer, _ in self.with_states(None)]

    def with_states(self, state: LayerState | None) -> Iterable[tuple[Layer, LayerState | None]]:
        """The layers in order, each with its state, None without one."""
        # Read where torch keeps them: by name, and from a `ModuleList`, each is looked up in functions of Python's.
        layers: Any = self._modules["layers"]
        found: Any = layers._modules.values()
        if state is None:
            return zip(found, repeat(None))
        assert type(state) is BlockState, "checked by Layer.forward"
        return zip(found, state.layers, strict=True)

    def together(self, state: LayerState | None, outs: list[Output[LayerState]], y: Tensor,
                 span: Span) -> Output[LayerState]:
        """The block's output from its layers' outputs, with the states, losses and channel values of all."""
        if self.asked is not None:
            self.asked.give("stream", y)
        losses: tuple[Loss, ...] = ()
        given: tuple[Given, ...] = ()
        states: tuple[LayerState, ...] = ()
        for out in outs:
            losses, given = losses + out.losses, given + out.given
            states = states if out.state is None else (*states, out.state)
        if state is None:
            return Output(y, None, losses, given)
        return Output(y, BlockState(span.after, states), losses, given)


class Block(Composite):
    """A block: subclasses implement one residual branch in `branch`; the residual stream is implemented here, once.

    Points: ``stream``, the residual stream after the block [B,T,D].
    """

    points = ("stream",)
    norms_per_layer: ClassVar[int] = 1

    def __init__(self, config: BlockConfig, dims: Dims) -> None:
        super().__init__(build_all([(("layers", index), part) for index, part in enumerate(config.layers)], dims))
        self.config = config
        self._roles = {f"layers.{index}": _role(part, dims) for index, part in enumerate(config.layers)}
        self.dropout = Dropout(config.dropout)
        self.plain_sum = config.residual and config.branch_scale == 1.0
        count = self.norms_per_layer * len(self.layers)
        self.norms = nn.ModuleList(config.norm.build(dims.at("norm")) for _ in range(count))

    def declares(self) -> Declared:
        return replace(super().declares(), child_roles=self._roles)

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        outs: list[Output[LayerState]] = []
        for index, (layer, inner) in enumerate(self.with_states(state)):
            out, x = self.branch(index, layer, x, inner, span)
            span = span.passing(out.given) if out.given else span
            outs.append(out)
        return self.together(state, outs, x, span)

    @abstractmethod
    def branch(self, index: int, layer: Layer, x: Tensor, state: LayerState | None,
               span: Span) -> tuple[Output[LayerState], Tensor]:
        """Run layer ``index`` on the stream ``x`` and return its output and the stream after it."""

    def wiring(self) -> Wiring | None:
        """Its norms, layers and sums as data, equal to what `run` does; None for a block that does not say."""
        return None

    def normed(self, index: int, x: Tensor, span: Span) -> Tensor:
        """``x`` after norm ``index``, whose batch statistics, if any, leave out padding."""
        norms: Any = self._modules["norms"]
        y: Tensor = norms._modules[str(index)](x, span.ticks.valid)
        return y

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream after a layer with output ``y``."""
        y = self.branched(y)
        return x + y if self.config.residual else y

    def branched(self, y: Tensor) -> Tensor:
        """A layer's output as it is added to the stream: with dropout in training, and times the block's factor."""
        dropout: Any = self._modules["dropout"]
        y = dropout(y) if dropout.training else y
        return y if self.config.branch_scale == 1.0 else y * self.config.branch_scale


Skip: TypeAlias = Literal["stream", "entering", "nothing"]
"""What is added to the branches: the stream as it enters the step, the stream after the entering norm, or nothing."""


@dataclass(frozen=True)
class Branch:
    """A layer between two norms, each None where there is none."""

    layer: int
    before: int | None = None
    after: int | None = None


@dataclass(frozen=True)
class Step:
    """Branches that read the same vectors, and the sum of their results.

    Attributes:
        branches: their results are added, times the block's ``branch_scale``.
        entering: the norm that all branches read through; None: they read the stream.
        after: the norm of the sum.
    """

    branches: tuple[Branch, ...]
    entering: int | None = None
    skip: Skip = "stream"
    after: int | None = None


Wiring: TypeAlias = tuple[Step, ...]


def in_turn(count: int, residual: bool, *, before: bool = False, after: bool = False) -> Wiring:
    """One step for each of ``count`` layers, whose branch has the norms of a block with one or two a layer."""
    each = int(before) + int(after)
    return tuple(Step((Branch(index, each * index if before else None,
                              each * index + int(before) if after else None),),
                      skip="stream" if residual else "nothing") for index in range(count))
