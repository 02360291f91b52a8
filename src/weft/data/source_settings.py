"""``data.sources`` of a run's configuration: named texts, each with a weight; and how text files are divided."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from weft.core.config import rule
from weft.core.errors import DataError, nearest
from weft.core.part_config import Settings
from weft.data.division import Division, Heading
from weft.data.mixture import PUBLISHED, Mixture
from weft.data.prepared_manifest import is_prepared


class HeadingSettings(Settings):
    """Documents begin at the lines that match a heading.

    Attributes:
        heading: a regular expression that is matched at the start of a line.
    """

    heading: str

    @field_validator("heading")
    @classmethod
    def _is_an_expression(cls, value: str) -> str:
        try:
            return Heading(value).pattern
        except DataError as error:
            raise rule("heading", error.what, error.remedy or "") from None


DocumentsSetting: TypeAlias = Literal["file", "line", "paragraph"] | HeadingSettings


def division_of(setting: DocumentsSetting) -> Division:
    """The setting, for `weft.data.read_text`."""
    return setting if isinstance(setting, str) else Heading(setting.heading)


class HubDataset(Settings):
    """A data set that the package `datasets` loads: of the Hub, or what stands in a local folder of such a name.

    Attributes:
        name: such as ``org/name``.
        subset: its configuration, where it has several.
        split: the part that is read.
        revision: branch, tag or commit; None: the newest.
    """

    name: str = Field(min_length=1)
    subset: str | None = None
    split: str = "train"
    revision: str | None = None


class TextSource(Settings):
    """A source of a mixture. What is None is as in ``data``.

    Attributes:
        path: a file, folder, pattern or list of them; a folder that ``weft data prepare`` wrote; or one that
            ``save_to_disk`` of the package `datasets` wrote.
        dataset: in place of ``path``: a data set of the Hub.
        weight: its share of the tokens that are read, in any unit; weights are divided by their sum. None: that of the
            part of this name in ``data.mixture``.
        max_epochs: how many times it is read at most; None: as often as its weight asks.
        max_bytes: limit of its text, in bytes.
        validation_path: a text of its own to hold out, instead of a share of this one.
        text_field: see `weft.data.settings.DataSettings`, and so for ``prompt_field`` and ``documents``.
        prompt_field: the field of a text that precedes it, as in ``data``.
        documents: what is a document in a text file, as in ``data``.
    """

    path: str | tuple[str, ...] | None = None
    dataset: HubDataset | None = None
    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    max_epochs: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_bytes: int | None = Field(default=None, gt=0)
    validation_path: str | None = None
    text_field: str | None = None
    prompt_field: str | None = None
    documents: DocumentsSetting | None = None

    @field_validator("dataset", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.path is None) == (self.dataset is None):
            both = "a path and a dataset" if self.path is not None else "neither a path nor a dataset"
            raise rule("path", f"{both}.", "Give one of them.")
        if self.path == ():
            raise rule("path", "an empty list.", "Name a file.")
        return self

    @property
    def prepared(self) -> Path | None:
        """``path``, if a prepared folder stands there."""
        return Path(self.path) if isinstance(self.path, str) and is_prepared(Path(self.path)) else None

    @property
    def division(self) -> Division | None:
        """``documents``, for `weft.data.read_text`; None: as in ``data``."""
        return None if self.documents is None else division_of(self.documents)


def with_weights(sources: Mapping[str, TextSource], mixture: str | None) -> dict[str, TextSource]:
    """Sources of which each has a weight, its own or the published one of the part of its name. Raises
    `PydanticCustomError`: one has none, two are the same part, the mixture or a part of it is unknown, or the sum is
    not positive."""
    published = None if mixture is None else _published(mixture)
    parts = {} if published is None else {plain_name(part.name): weight for part, weight in
                                          zip(published.sources, published.weights(), strict=True)}
    found, by_part = dict[str, TextSource](), dict[str, str]()
    for name, source in sources.items():
        weight, part = source.weight, plain_name(name)
        if part in parts and by_part.setdefault(part, name) != name:
            raise rule("sources", f"{by_part[part]!r} and {name!r} are both the part {part} of {mixture}.",
                       "Name one source with all its paths.")
        if weight is None and published is None:
            raise rule(f"sources.{name}.weight", "missing.", "Give a number, or data.mixture.")
        if weight is None and part not in parts:
            raise rule("sources", f"{mixture} has no part {name!r}, and the source has no weight.",
                       f"{nearest(part, parts)} Or give a weight.")
        found[name] = source if weight is not None else source.model_copy(update={"weight": parts[part]})
    if not sum(source.weight or 0 for source in found.values()) > 0:
        raise rule("sources", "all weights are zero.", "Give one source a weight at least.")
    return found


def plain_name(name: str) -> str:
    """A name in lower-case letters and digits, words joined by underscores: ``Wikipedia (en)`` is wikipedia_en."""
    return re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")


def _published(name: str) -> Mixture:
    if name not in PUBLISHED:
        raise rule("mixture", f"{name!r} is not a published mixture.", nearest(name, PUBLISHED))
    return PUBLISHED[name]
