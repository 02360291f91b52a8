"""What a part's configuration is: a small frozen model beside its part, built into a model's dimensions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, TypeAlias

from pydantic import BaseModel, ConfigDict
from torch import nn

from weft.core.errors import ConfigError

Place: TypeAlias = tuple[int | str, ...]
"""Where something stands in a configuration: keys and indices, outermost first."""


class SharedUse(Protocol):
    """What `Dims` knows of the parts declared under ``shared:``: how one of them is used (`weft.core.shared`)."""

    @property
    def configs(self) -> Mapping[str, PartConfig]:
        """What is declared, by name."""
        ...

    def use(self, name: str, groups: tuple[str, ...], fit: Hashable,
            build: Callable[[PartConfig, Dims], nn.Module], dims: Dims) -> nn.Module:
        """The shared part ``name``, built on first use."""
        ...


@dataclass(frozen=True)
class Dims:
    """What a part may know of the model it is built into, and nothing else.

    Attributes:
        d_model: width of the residual stream.
        vocab_size: number of token ids.
        context: tokens of a training window; the reach of parts with tables of positions.
        layer: index of the block being built, from 0.
        n_layers: number of blocks.
        shared: the parts declared under ``shared:``; None where nothing can be shared.
        tokens: the token embedding, once it exists, for readouts that are tied to it.
        predicts: the model predicts each next token, so none of its layers may see later ones.
        path: where in the configuration the part stands, for errors.
    """

    d_model: int
    vocab_size: int = 0
    context: int = 0
    layer: int = 0
    n_layers: int = 1
    shared: SharedUse | None = None
    tokens: nn.Embedding | None = None
    predicts: bool = False
    path: str = ""

    def at(self, *names: str | int) -> Dims:
        """The same, for the child that stands at ``names``."""
        return replace(self, path=".".join([*([self.path] if self.path else []), *map(str, names)]))

    def problem(self, name: str, what: str, remedy: str) -> ConfigError:
        """An error about the field ``name`` of the part being built."""
        place = ".".join(part for part in (self.path, name) if part)
        return ConfigError([f"{place}: {what} {remedy}"])


class Settings(BaseModel):
    """Base of every configuration model: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class PartConfig(Settings):
    """Base of a part's configuration.

    Class attributes:
        group: what the part is (``mixer``, ``feedforward``, ``position``, ``norm``, ``block``, ``model``, ...).
        kind: its name in files.
        also_called: other names in use for it, which no file may give but which a hint understands.
        source: the paper, with section or equation.
        state_size: what its state holds per row, in words; empty for parts without one.
    """

    group: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    also_called: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str] = ""
    state_size: ClassVar[str] = ""

    def build(self, dims: Dims) -> nn.Module:
        """The part, for a model of those dimensions."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")

    @classmethod
    def examples(cls) -> list[Self]:
        """Tiny configurations that together use every option; the laws run on each."""
        return [cls()]

    @classmethod
    def acts(cls) -> str:
        """Where in a model the part acts, and how often, in words; empty where its group alone says it."""
        return ""

    def giver(self) -> PartConfig | None:
        """For a layer that takes something from earlier ones (`weft.core.channels`): one that gives it, behind which
        the laws try this one. None for a layer that takes nothing."""
        return None

    def dump(self) -> dict[str, Any]:
        """Plain data that `parse` reads back, kind included."""
        return {"kind": self.kind, **self.model_dump(mode="json")}


class Shared(PartConfig):
    """A reference to a part declared under ``shared:``, built once and used wherever it is named."""

    kind: ClassVar[str] = "shared"
    shared: str
    groups: tuple[str, ...] = ()

    def build(self, dims: Dims) -> nn.Module:
        return self._use(dims, "a model", lambda part, here: part.build(here))

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> nn.Module:
        """A shared position scheme inside attention."""
        def build(part: Any, here: Dims) -> nn.Module:
            made: nn.Module = part.build_for_heads(here, n_heads, d_head)
            return made

        return self._use(dims, f"{n_heads} heads of size {d_head}", build)

    def _use(self, dims: Dims, fit: str, build: Callable[[PartConfig, Dims], nn.Module]) -> nn.Module:
        if dims.shared is None:
            raise dims.problem("shared", f"no shared part is called {self.shared!r}.", "There are none here.")
        return dims.shared.use(self.shared, self.groups, fit, build, dims)

    def dump(self) -> dict[str, Any]:
        return {"shared": self.shared}


class Repeat(PartConfig):
    """``{repeat: 6, of: [...]}``: the same blocks several times over, each with weights of its own."""

    kind: ClassVar[str] = "repeat"
    repeat: int
    of: list[Any]

    def dump(self) -> dict[str, Any]:
        return {"repeat": self.repeat, "of": [dump(item) for item in self.of]}


def dump(item: Any) -> Any:
    """A part, or plain data, as plain data."""
    return item.dump() if isinstance(item, PartConfig) else item


def expand(items: list[Any]) -> Iterator[tuple[Place, PartConfig]]:
    """Blocks with every `Repeat` written out, each with the place where it stands in the file."""
    for index, item in enumerate(items):
        if isinstance(item, Repeat):
            for _ in range(item.repeat):
                for place, part in expand(item.of):
                    yield (index, "of", *place), part
        else:
            yield (index,), item


def parts_in(value: Any) -> Iterator[PartConfig]:
    """Every part in a configuration, itself among them where it is one."""
    if isinstance(value, BaseModel):
        if isinstance(value, PartConfig):
            yield value
        for name in type(value).model_fields:
            yield from parts_in(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from parts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from parts_in(item)
