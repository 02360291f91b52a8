"""Rules for the keys of a Hugging Face configuration, each read and written; `configurations` applies them.

Every key is *read* (`Read`, `Together`), *required to equal* a value (`Fixed`), *kept* unchanged and written back
(`Kept`), or *ignored with a reason* (`Ignored`). Any other key is an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.core.errors import nearest
from weft.families.template import Facts

Raw = Mapping[str, Any]
"""A Hugging Face configuration as read from config.json."""

REQUIRED = object()
"""No default: the key is required."""

TYPE_NAMES: Mapping[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a word",
                                  list: "a list", dict: "a mapping"}


class KeyProblem(Exception):
    """A key whose value cannot be used, or a fact that the keys cannot express."""


class KeyRule(ABC):
    """A rule between some keys of a foreign configuration and facts about the model."""

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """All keys that the rule accounts for, old spellings included."""

    def read(self, raw: Raw, facts: Facts) -> Facts:
        """The facts that follow from the keys; ``facts`` holds those of the rules before. Raises `KeyProblem`: the keys
        cannot be read; its text is one line for the user."""
        return {}

    def write(self, facts: Facts) -> dict[str, Any]:
        """The keys that express the facts. Raises `KeyProblem`: the keys cannot express them."""
        return {}

    def notes(self, raw: Raw) -> list[str]:
        """Notes for the user about keys that are ignored."""
        return []


@dataclass(frozen=True)
class Codec:
    """Maps a key's value to a fact's and back; a value without a counterpart raises `KeyProblem`."""

    read: Callable[[Any], Any] = field(default=lambda value: value)
    write: Callable[[Any], Any] = field(default=lambda value: value)


PLAIN = Codec()


def words(pairs: Mapping[Any, Any], *, also: Mapping[Any, Any] | None = None) -> Codec:
    """A codec between names: ``pairs`` map theirs to ours, ``also`` further spellings, which are only read."""
    known = {**pairs, **(also or {})}
    back = {ours: theirs for theirs, ours in pairs.items()}

    def read(value: Any) -> Any:
        if value not in known:
            raise KeyProblem(f"{value!r} is not known here. {nearest(str(value), map(str, known))}")
        return known[value]

    def write(value: Any) -> Any:
        if value not in back:
            raise KeyProblem(f"cannot express {value!r}; its values are {', '.join(repr(each) for each in back)}.")
        return back[value]

    return Codec(read, write)


@dataclass(frozen=True)
class Read(KeyRule):
    """One key is one fact.

    Attributes:
        key: the spelling that is written.
        fact: the name of the fact.
        type: type of the key's value; whole numbers are accepted as floats.
        default: the value where the key is missing, as in `transformers`.
        derive: computes the fact from earlier facts where the key is missing; takes precedence over ``default``.
        null: whether null is a value; by default it counts as a missing key.
        alias: further spellings that take precedence over ``key``, as in `transformers`.
        old: further spellings that are read where ``key`` is missing.
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
    """Return the value if it is null or of that type. Raises `KeyProblem`: it is of another type."""
    number = kind is float and isinstance(value, int) and not isinstance(value, bool)
    good = value is None or number or (isinstance(value, kind) and not (kind is int and isinstance(value, bool)))
    if not good:
        raise KeyProblem(f"{key}: {value!r} is not {TYPE_NAMES[kind]}.")
    return float(value) if number else value


@dataclass(frozen=True)
class Together(KeyRule):
    """Several keys that express some facts together.

    Attributes:
        reads: computes facts from the configuration and earlier facts.
        writes: computes keys from facts.
        says: the notes for the user.
    """

    names: tuple[str, ...]
    reads: Callable[[Raw, Facts], Facts]
    writes: Callable[[Facts], dict[str, Any]]
    says: Callable[[Raw], list[str]] = lambda raw: []

    @property
    def keys(self) -> tuple[str, ...]:
        return self.names

    def read(self, raw: Raw, facts: Facts) -> Facts:
        return self.reads(raw, facts)

    def write(self, facts: Facts) -> dict[str, Any]:
        return self.writes(facts)

    def notes(self, raw: Raw) -> list[str]:
        return self.says(raw)


@dataclass(frozen=True)
class Fixed(KeyRule):
    """A key that must have one of ``values``, because Weft's parts support no other; written unless the first of
    them is the default of `transformers` (``default``)."""

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
            allowed = " or ".join(repr(each) for each in self.values)
            raise KeyProblem(f"{self.key}: {value!r}, but only {allowed} can be read. {self.why}".rstrip())
        return {}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {} if self.values[0] == self.default else {self.key: self.values[0]}


@dataclass(frozen=True)
class Kept(KeyRule):
    """A key on which the model's output does not depend (ids of special tokens), kept and written back where known, and
    else as null, or not at all where `transformers` takes no null (``left_out``)."""

    key: str
    old: tuple[str, ...] = ()
    left_out: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.old)

    def read(self, raw: Raw, facts: Facts) -> Facts:
        found = [raw[key] for key in self.keys if raw.get(key) is not None]
        return {KEPT: {**facts.get(KEPT, {}), self.key: found[0]}} if found else {}

    def write(self, facts: Facts) -> dict[str, Any]:
        value = facts.get(KEPT, {}).get(self.key)
        return {} if value is None and self.left_out else {self.key: value}


KEPT = "kept"
"""The fact that holds the values of `Kept` rules, by key."""


NOTHING: tuple[Any, ...] = (None, False, [], {})
"""Values that switch nothing on; 0 is equal to False."""


@dataclass(frozen=True)
class Ignored(KeyRule):
    """Keys without influence on what the model computes, with the reason. With ``notify`` a key whose value is not
    among the ``usual`` ones gives a note for the user."""

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
