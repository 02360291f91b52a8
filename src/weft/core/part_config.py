"""`PartConfig`: the configuration of a part, a small frozen model from which the part is built."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Protocol, Self, TypeAlias, final, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from torch import nn

from weft.core.errors import ConfigError, refuse_unread

Place: TypeAlias = tuple[int | str, ...]
"""A path in a configuration: keys and indices, outermost first."""


class SharedUse(Protocol):
    """The parts declared under ``shared:``, as `Dims` refers to them (`weft.core.config` implements this)."""

    @property
    def configs(self) -> Mapping[str, ModuleConfig]:
        """Their configurations, by name."""
        ...

    def use(self, name: str, groups: tuple[str, ...], fit: Hashable,
            build: Callable[[ModuleConfig, Dims], nn.Module], dims: Dims) -> nn.Module:
        """The shared part ``name``, built on first use."""
        ...


@dataclass(frozen=True)
class Dims:
    """The properties of a model that its parts may depend on when they are built; nothing else of it is visible.

    Attributes:
        d_model: width of the residual stream.
        vocab_size: number of token ids.
        context: tokens of a training window; the reach of parts with tables of positions.
        layer: index of the block being built, from 0.
        n_layers: number of blocks.
        shared: the parts declared under ``shared:``; None where nothing can be shared.
        tokens: the token embedding, once it is built, for readouts that are tied to it; None if it is adaptive.
        clusters: an adaptive token embedding (`weft.heads.adaptive_embedding`), for readouts that are tied to it.
        predicts: whether the model predicts each next token, so that no layer may attend to later ones.
        path: of the part in the configuration, for errors.
    """

    d_model: int
    vocab_size: int = 0
    context: int = 0
    layer: int = 0
    n_layers: int = 1
    shared: SharedUse | None = None
    tokens: nn.Embedding | None = None
    clusters: nn.Module | None = None
    predicts: bool = False
    path: str = ""

    def at(self, *names: str | int) -> Dims:
        """The same for the child at ``names``."""
        return replace(self, path=".".join([*([self.path] if self.path else []), *map(str, names)]))

    def problem(self, name: str, what: str, remedy: str) -> ConfigError:
        """An error about the field ``name`` of the part being built."""
        place = ".".join(part for part in (self.path, name) if part)
        return ConfigError([f"{place}: {what} {remedy}"])


LARGEST = 2**63 - 1
"""The largest whole number of a configuration."""
MOST_BLOCKS = 10_000
"""Of a model. The deepest published ones have about a thousand, and each takes about a millisecond to build."""


class Settings(BaseModel):
    """Base of all configuration models, which are frozen and refuse unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @final
    def with_(self, **changes: Any) -> Self:
        """The configuration with other values of some fields, validated as when it is made. A mapping for a field that
        holds a configuration changes fields of that one: ``run.with_(seed=1, training={"steps": 100})``.

        Raises:
            pydantic.ValidationError: there is no such field, or a value is not one of its.
        """
        values = {name: getattr(self, name) for name in self.model_fields_set}
        for name, value in changes.items():
            held = getattr(self, name, None)
            values[name] = held.with_(**value) if isinstance(held, Settings) and isinstance(value, Mapping) else value
        return type(self).model_validate(values)

    @field_validator("*", mode="before")
    @classmethod
    def _require_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for a number, which Python counts as 1 and 0, and whole numbers beyond 64 bits, which
        no tensor, file or seed holds."""
        types = _types(cls, str(info.field_name))
        if int not in types and float not in types:
            return value
        for each in _scalars(value) if isinstance(value, list | tuple | Mapping) else (value,):
            if isinstance(each, bool) and bool not in types and Any not in types:
                raise ValueError("a number is expected, not true or false")
            if isinstance(each, int) and not -LARGEST <= each <= LARGEST:
                raise ValueError(f"whole numbers are at most {LARGEST:,} (64 bits)")
        return value


@cache
def _types(config: type[BaseModel], field: str) -> frozenset[Any]:
    """The types that a field of a configuration may hold, also in lists and mappings."""
    found, waiting = set[Any](), [config.model_fields[field].annotation]
    while waiting:
        annotation = waiting.pop()
        inner = get_args(annotation)
        waiting += inner
        if not inner:
            found.add(annotation)
    return frozenset(found)


def _scalars(value: Any) -> Iterator[Any]:
    """The values in lists and mappings."""
    if isinstance(value, list | tuple | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _scalars(each)
    else:
        yield value


@dataclass(frozen=True, kw_only=True)
class About:
    """The card of a kind of part: what it says of itself.

    Attributes:
        title: its name in text, such as ``RoPE``; empty where that is its kind.
        also_called: other common names, which files may not use; the error for one names the kind.
        source: the paper, with section or equation.
        equation: what it computes, in LaTeX.
        differs: the kinds of the nearest other parts, and how it differs from each, in a sentence.
        pictured: of a task or a benchmark, a small example: what the model reads at each place, and what it is to
            predict there, empty where nothing counts.
        state_size: the size of its state for one row, in words; empty for parts without a state.
    """

    title: str = ""
    also_called: tuple[str, ...] = ()
    source: str = ""
    equation: str = ""
    differs: tuple[tuple[str, str], ...] = ()
    pictured: tuple[tuple[str, str], ...] = ()
    state_size: str = ""


class PartConfig(Settings):
    """Base of a part's configuration.

    Class attributes:
        group: of the part: ``mixer``, ``feedforward``, ``position``, ``norm``, ``block``, ``model``, ...
        kind: its name in files.
        about: what it says of itself. A subclass has that of its base unless it gives its own.
    """

    group: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    about: ClassVar[About] = About()

    @classmethod
    def __pydantic_init_subclass__(cls, **given: Any) -> None:
        super().__pydantic_init_subclass__(**given)
        about = "Give it as a field of weft.core.part_config.About in the attribute `about`."
        unread = dict.fromkeys(About.__dataclass_fields__, about)
        if getattr(cls, "group", "position") != "position":
            unread["acts"] = "It is read of position schemes alone. Leave it out."
        # The bases of this module define what is refused of others.
        refuse_unread(cls, unread, {} if cls.__module__ == __name__ else {
            ModuleConfig: ("build", "in_words", "width_fields", "giver")})

    @classmethod
    def examples(cls) -> list[Self]:
        """Tiny configurations that together use every option; the laws run on each."""
        return [cls()]

    @final
    def dump(self) -> dict[str, Any]:
        """Plain data that `parse` reads back, kind included."""
        return self._written()

    def _written(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.model_dump(mode="json")}


class ModuleConfig(PartConfig):
    """Base of the configurations of what models are made of, from which modules are built."""

    def build(self, dims: Dims) -> nn.Module:
        """Build the part for a model of these dimensions."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")

    def in_words(self, d_model: int = 0) -> str:
        """The part in a phrase, such as ``Mamba (d_state 16, expand 2, d_conv 4)``: its name, the whole numbers that
        are set, and the layers and positions in it. A part that has a shorter way to say what it is overrides this.

        Args:
            d_model: width of the model, from which sizes that are left open follow.
        """
        found = [f"{name} {value:,}" for name, value in self if isinstance(value, int) and not isinstance(value, bool)]
        found += [value.in_words(d_model) for _, value in self if isinstance(value, ModuleConfig)
                  and value.group in ("mixer", "feedforward", "position")]
        name = self.about.title or self.kind.replace("_", " ")
        inside = ", ".join(each for each in found if each)
        return f"{name} ({inside})" if inside else name

    def width_fields(self) -> tuple[str, ...]:
        """The names of its fields that grow in proportion to the width of the model; fields that are None follow it by
        themselves."""
        return ()

    def giver(self) -> ModuleConfig | None:
        """For a layer that takes a channel, the configuration of one that gives it; the laws run this layer behind it.
        None for a layer that takes nothing."""
        return None


class Shared(ModuleConfig):
    """A reference to a part declared under ``shared:``, which is built once and used wherever it is named.

    Attributes:
        shared: the name under ``shared:``.
        groups: of which one is the part's; set where the reference stands.
    """

    kind: ClassVar[str] = "shared"
    shared: str
    groups: tuple[str, ...] = ()

    def in_words(self, d_model: int = 0) -> str:
        return f"shared {self.shared}"

    def build(self, dims: Dims) -> nn.Module:
        return self._use(dims, "a model", lambda part, here: part.build(here))

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> nn.Module:
        """A shared position scheme inside attention."""
        def build(part: Any, here: Dims) -> nn.Module:
            built: nn.Module = part.build_for_heads(here, n_heads, d_head)
            return built

        return self._use(dims, f"{n_heads} heads of size {d_head}", build)

    def _use(self, dims: Dims, fit: str, build: Callable[[ModuleConfig, Dims], nn.Module]) -> nn.Module:
        if dims.shared is None:
            raise dims.problem("shared", f"no shared part is called {self.shared!r}.", "There are none here.")
        return dims.shared.use(self.shared, self.groups, fit, build, dims)

    def _written(self) -> dict[str, Any]:
        return {"shared": self.shared}


class Repeat(ModuleConfig):
    """``{repeat: 6, of: [...]}``: the same blocks several times, each with separate weights.

    Attributes:
        repeat: how often.
        of: the blocks that are repeated.
    """

    kind: ClassVar[str] = "repeat"
    repeat: int
    of: list[Any]

    def _written(self) -> dict[str, Any]:
        return {"repeat": self.repeat, "of": [dump(item) for item in self.of]}


def dump(item: Any) -> Any:
    """A part, or plain data, as plain data."""
    return item.dump() if isinstance(item, PartConfig) else item


def count_blocks(items: Sequence[Any]) -> int:
    """How many blocks `expand` gives, counted without writing them out."""
    return sum(item.repeat * count_blocks(item.of) if isinstance(item, Repeat) else 1 for item in items)


def kinds_of(blocks: Iterable[PartConfig]) -> list[tuple[PartConfig, int]]:
    """The different blocks among these, each with its number."""
    kinds: list[tuple[PartConfig, int]] = []
    for block in blocks:
        at = next((at for at, (kind, _) in enumerate(kinds) if kind is block or kind == block), len(kinds))
        kinds[at:at + 1] = [(block, 1 + (kinds[at][1] if at < len(kinds) else 0))]
    return kinds


def expand(items: list[Any]) -> Iterator[tuple[Place, ModuleConfig]]:
    """Blocks with every `Repeat` written out, each with its path in the file."""
    for index, item in enumerate(items):
        if isinstance(item, Repeat):
            for _ in range(item.repeat):
                for place, part in expand(item.of):
                    yield (index, "of", *place), part
        else:
            yield (index,), item


def parts_in(value: Any) -> Iterator[PartConfig]:
    """Every part in a configuration, including the configuration itself if it is a part's."""
    if isinstance(value, BaseModel):
        if isinstance(value, PartConfig):
            yield value
        items: Iterable[Any] = [getattr(value, name) for name in type(value).model_fields]
    else:
        items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for item in items:
        if isinstance(item, BaseModel | Mapping | list | tuple):
            yield from parts_in(item)
