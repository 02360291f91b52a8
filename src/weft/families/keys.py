"""Rules for the keys of a Hugging Face configuration, each read in both directions; `configurations` applies them.

Every key is *read* (`Read`, `Together`), *required to equal* something (`Fixed`), *kept* as it is and given back
(`Kept`), or *ignored with a reason* (`Ignored`). Any other key is an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from weft.core.errors import nearest
from weft.families.template import Facts

Raw = Mapping[str, Any]
"""A Hugging Face configuration as it stands in config.json."""

REQUIRED = object()
"""No default: the key must be there."""

TYPE_NAMES: Mapping[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a word",
                                  list: "a list", dict: "a mapping"}


class KeyProblem(Exception):
    """A key whose value cannot be used, or a fact that a key cannot say."""


class KeyRule(ABC):
    """What some keys of a foreign configuration say."""

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """All keys that the rule accounts for, old spellings included."""

    def read(self, raw: Raw, facts: Facts) -> Facts:
        """The facts that the keys say; ``facts`` holds those of the rules before.

        Raises:
            KeyProblem: with one line for a reader.
        """
        return {}

    def write(self, facts: Facts) -> dict[str, Any]:
        """The keys that say the facts.

        Raises:
            KeyProblem: they cannot.
        """
        return {}

    def notes(self, raw: Raw) -> list[str]:
        """Notes for the user about keys that are ignored."""
        return []


@final
@dataclass(frozen=True)
class Codec:
    """A key's value as a fact's and back; either way a value that has no counterpart raises `KeyProblem`."""

    read: Callable[[Any], Any] = field(default=lambda value: value)
    write: Callable[[Any], Any] = field(default=lambda value: value)


PLAIN = Codec()


def words(pairs: Mapping[Any, Any], *, also: Mapping[Any, Any] | None = None) -> Codec:
    """A codec between names: ``pairs`` from theirs to ours, ``also`` further spellings that are read only."""
    known = {**pairs, **(also or {})}
    back = {ours: theirs for theirs, ours in pairs.items()}

    def read(value: Any) -> Any:
        if value not in known:
            raise KeyProblem(f"{value!r} is not known here. {nearest(str(value), map(str, known))}")
        return known[value]

    def write(value: Any) -> Any:
        if value not in back:
            raise KeyProblem(f"has no word for {value!r}; it knows {', '.join(repr(each) for each in back)}.")
        return back[value]

    return Codec(read, write)


@final
@dataclass(frozen=True)
class Read(KeyRule):
    """One key is one fact.

    Attributes:
        key: as it is written.
        fact: its name.
        type: of the key's value; whole numbers are numbers too.
        default: the key's value where the file does not say, as `transformers` has it.
        derive: the fact, from earlier facts, where the file does not say; goes before ``default``.
        null: null is a value of its own, not a key left out.
        alias: further spellings that go before ``key`` where a file has both, as `transformers` reads them.
        old: further spellings that go after it.
        codec: between the key's value and the fact's.
    """

    key: str
    fact: str
    type: type = int
    default: Any = REQUIRED
    derive: Callable[[Facts], Any] | None = None
    null: bool = False
    alias: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    codec: Codec = PLAIN

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.alias, self.key, *self.old)

    def read(self, raw: Raw, facts: Facts) -> Facts:
        for key in self.keys:
            if key in raw and (raw[key] is not None or self.null):
                return {self.fact: self.codec.read(typed(key, raw[key], self.type))}
        if self.derive is not None:
            return {self.fact: self.derive(facts)}
        if self.default is REQUIRED:
            raise KeyProblem(f"{self.key}: missing.")
        return {self.fact: self.codec.read(self.default)}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {self.key: self.codec.write(facts[self.fact])}


def typed(key: str, value: Any, kind: type) -> Any:
    """The value, if it is null or of that type.

    Raises:
        KeyProblem: it is not.
    """
    number = kind is float and isinstance(value, int) and not isinstance(value, bool)
    good = value is None or number or (isinstance(value, kind) and not (kind is int and isinstance(value, bool)))
    if not good:
        raise KeyProblem(f"{key}: {value!r} is not {TYPE_NAMES[kind]}.")
    return float(value) if number else value


@final
@dataclass(frozen=True)
class Together(KeyRule):
    """Several keys that say some facts together.

    Attributes:
        names: the keys.
        reads: from the configuration and the facts before to facts.
        writes: from facts to keys.
    """

    names: tuple[str, ...]
    reads: Callable[[Raw, Facts], Facts]
    writes: Callable[[Facts], dict[str, Any]]

    @property
    def keys(self) -> tuple[str, ...]:
        return self.names

    def read(self, raw: Raw, facts: Facts) -> Facts:
        return self.reads(raw, facts)

    def write(self, facts: Facts) -> dict[str, Any]:
        return self.writes(facts)


@final
@dataclass(frozen=True)
class Fixed(KeyRule):
    """A key that must have one of ``values``, because Weft's parts have no other; written where the first of them is
    not what `transformers` assumes anyway (``default``)."""

    key: str
    values: tuple[Any, ...]
    default: Any = None
    why: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def read(self, raw: Raw, facts: Facts) -> Facts:
        value = raw.get(self.key, self.default)
        if value not in self.values:
            wanted = " or ".join(repr(each) for each in self.values)
            raise KeyProblem(f"{self.key}: {value!r}, but only {wanted} can be read. {self.why}".rstrip())
        return {}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {} if self.values[0] == self.default else {self.key: self.values[0]}


@final
@dataclass(frozen=True)
class Kept(KeyRule):
    """A key that the model does not compute with, kept and given back where it is known (ids of special tokens)."""

    key: str
    old: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.old)

    def read(self, raw: Raw, facts: Facts) -> Facts:
        found = [raw[key] for key in self.keys if raw.get(key) is not None]
        return {KEPT: {**facts.get(KEPT, {}), self.key: found[0]}} if found else {}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {self.key: facts.get(KEPT, {}).get(self.key)}


KEPT = "kept"
"""The fact that holds what `Kept` rules have found, by key."""


NOTHING: tuple[Any, ...] = (None, False, [], {})
"""Values of a key that says nothing; 0 is equal to one of them."""


@final
@dataclass(frozen=True)
class Ignored(KeyRule):
    """Keys that say nothing about what the model computes, with the reason. With ``notify`` a user whose file has one
    gets a note, unless its value is among the ``usual`` ones."""

    names: tuple[str, ...]
    reason: str
    notify: bool = False
    usual: tuple[Any, ...] = NOTHING

    @property
    def keys(self) -> tuple[str, ...]:
        return self.names

    def notes(self, raw: Raw) -> list[str]:
        return [f"{key}: {self.reason}" for key in self.names if self.notify and key in raw
                and raw[key] not in self.usual]
