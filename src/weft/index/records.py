"""Records of what is listed: parts, settings, presets and published models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from weft.core.errors import InputError, nearest
from weft.core.strict_json import Record

SETTINGS = "settings"
"""The group of settings, which are no parts: sections of a run's file, a study's, and options of decoding."""


@dataclass(frozen=True)
class Entry(Record):
    """One part.

    Attributes:
        group: the group of parts (mixer, position, mask, model, ...).
        kind: the name in files.
        usage: how the part is written in a file.
        summary: the first sentence of its documentation.
        state_size: the contents of its state per row, in words; empty for parts without a state.
        traits: the traits of its examples, which replace laws by weaker ones, with their reasons.
        defined_in: the module that defines it, which may be a plugin's.
        acts_on: where a position scheme acts and how often, in words; empty for other parts.
    """

    group: str
    kind: str
    usage: str
    summary: str
    source: str
    state_size: str
    traits: dict[str, str]
    defined_in: str
    acts_on: str


@dataclass(frozen=True)
class FieldDescription(Record):
    """A field of a configuration.

    Attributes:
        name: its key; of a key in a mapping with both keys, ``scores.scale``, where NAME and N stand for any name and
            any number.
        type: the allowed values, in words.
        default: the default as a file writes it; "required" if there is none, "see below" for a mapping whose keys
            follow.
        meaning: what it is, and its unit if it has one.
    """

    name: str
    type: str
    default: str
    meaning: str


@dataclass(frozen=True)
class PartDifference(Record):
    """How a part differs from a near one.

    Attributes:
        sentence: what is different, of the part itself.
    """

    kind: str
    sentence: str


@dataclass(frozen=True)
class Description(Record):
    """The description of one part.

    Attributes:
        entry: its line in the list.
        text: the documentation of the part and of the class that it builds.
        fields: the fields of its configuration, or a mask's arguments.
        equation: what it computes, in LaTeX; empty where nothing is declared.
        differs: how it differs from the nearest other parts.
    """

    entry: Entry
    text: str
    fields: tuple[FieldDescription, ...]
    equation: str
    differs: tuple[PartDifference, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote, without a look at the types of each field, which takes a second for all parts."""
        return cls(Entry(**data["entry"]), data["text"], tuple(FieldDescription(**each) for each in data["fields"]),
                   data["equation"], tuple(PartDifference(**each) for each in data["differs"]))


@dataclass(frozen=True)
class Preset(Record):
    """A configuration that comes with Weft.

    Attributes:
        name: by which commands know it.
        family: the family of a published model; empty for Weft's own.
    """

    name: str
    line: str
    family: str


@dataclass(frozen=True)
class Published(Record):
    """One published model.

    Attributes:
        model_type: the family's name in config.json; empty for one without a foreign format.
        gguf: llama.cpp's architecture for the family; empty where it has none.
        parameters: counted on the model itself, shared ones once.
        published: the published number of parameters; None: none is known exactly.
        agrees: whether the two are equal, to the published digits.
        source: source of the published number.
    """

    family: str
    model_type: str
    architecture: str
    gguf: str
    name: str
    parameters: int
    published: int | None
    agrees: bool
    source: str


@dataclass(frozen=True)
class Index(Record):
    """Everything that is listed.

    Attributes:
        parts: parts and masks, by group and kind.
        settings: settings that are no parts.
        presets: Weft's own, then published models by family.
        published: published models by family, with their parameters counted.
    """

    parts: tuple[Description, ...]
    settings: tuple[Description, ...]
    presets: tuple[Preset, ...]
    published: tuple[Published, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(tuple(map(Description.from_json, data["parts"])),
                   tuple(map(Description.from_json, data["settings"])),
                   tuple(Preset(**each) for each in data["presets"]),
                   tuple(Published(**each) for each in data["published"]))

    def select(self, only: str | None = None) -> list[Description]:
        """Parts and settings of a group or kind; None: the parts, and no settings. Raises `InputError`: there is no
        group and no kind of that name; the error names the nearest."""
        if only is None:
            return list(self.parts)
        pages = [*self.parts, *self.settings]
        require_known(only, ((page.entry.group, page.entry.kind) for page in pages))
        return [page for page in pages if only in (page.entry.group, page.entry.kind)]


def require_known(only: str, known: Iterable[tuple[str, str]]) -> None:
    """Refuse a name that is neither a group nor a kind. Raises `InputError`: naming the nearest, and all groups."""
    pairs = list(known)
    names = {name for pair in pairs for name in pair}
    if only not in names:
        hint = nearest(only, names)
        groups = f"Groups: {', '.join(sorted({group for group, _ in pairs}))}."
        raise InputError(f"no part and no group of parts is called {only!r}.", where="kind",
                         remedy=f"{hint} {groups}" if hint.startswith("Did") else groups)
