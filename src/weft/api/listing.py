"""The index as the registry has it: parts, settings that are no parts, and presets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from itertools import takewhile
from types import MappingProxyType

from pydantic import BaseModel

from weft.analysis.describe import REQUIRED, describe, fields_of
from weft.analysis.known_parts import catalogue, summary_of
from weft.api.generating import Ends
from weft.api.translating import Search
from weft.chat.conversation import ChatSettings
from weft.comparison.study import StudyConfig
from weft.core.meanings import meanings, without_meanings
from weft.data.mixture import MixtureSettings
from weft.data.settings import DataSettings
from weft.decoding.sampling import Sampling
from weft.families.family import families
from weft.index.records import SETTINGS, Description, Entry, FieldDescription, Index, Preset
from weft.interop.formats import published
from weft.parallel.mesh import MeshSettings
from weft.training.config import ReportSettings, RunConfig, TrainingSettings

SECTIONS: Mapping[str, type] = MappingProxyType({
    "run": RunConfig, "data": DataSettings, "training": TrainingSettings, "report": ReportSettings,
    "mesh": MeshSettings, "study": StudyConfig, "mixtures": MixtureSettings, "sampling": Sampling, "ends": Ends,
    "beams": Search, "conversation": ChatSettings})
"""Settings that are no parts, by the name under which they are listed: sections of files, and options of decoding."""
SHOWN_APART = frozenset({"data", "training", "report"})
"""Sections of a run's file that are listed by themselves."""


def indexed() -> Index:
    """Return the index of everything that this process knows, plugins included."""
    return Index(tuple(map(describe, catalogue())), tuple(settings_pages()), tuple(preset_lines()), tuple(published()))


def settings_pages() -> Iterator[Description]:
    """Yield a page for each kind of settings."""
    for name, config in SECTIONS.items():
        fields = fields_of(config) if issubclass(config, BaseModel) else _dataclass_fields(config)
        own = _without_sections(fields) if config is RunConfig else fields
        entry = Entry(SETTINGS, name, name, summary_of(config), "", "", {}, config.__module__, "")
        yield Description(entry, without_meanings(config.__doc__ or ""), tuple(own), "", ())


def _without_sections(fields: Iterable[FieldDescription]) -> Iterator[FieldDescription]:
    """A run's fields, with a reference in place of those of sections that are listed by themselves."""
    for field in fields:
        if field.name in SHOWN_APART:
            yield dataclasses.replace(field, default=f"see weft list {field.name}")
        elif field.name.split(".")[0] not in SHOWN_APART:
            yield field


def _dataclass_fields(config: type) -> Iterator[FieldDescription]:
    fields = dataclasses.fields(config)
    words = meanings(config, [field.name for field in fields])
    for field in fields:
        made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = REQUIRED if made is dataclasses.MISSING else repr(made)
        yield FieldDescription(field.name, str(field.type), default, words[field.name])


def preset_lines() -> Iterator[Preset]:
    """Yield Weft's own presets with the first sentence of their files, then published models by family."""
    for file in sorted(resources.files("weft.preset_files").iterdir(), key=lambda each: each.name):
        if file.name.endswith(".yaml"):
            comment = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
            about = " ".join(line.removeprefix("#").strip() for line in comment)
            yield Preset(file.name.removesuffix(".yaml"), about, "")
    for family in families().values():
        for size in family.sizes:
            about = "about " if size.rounded is not None else ""
            known = f"{about}{size.parameters:,} parameters" if size.parameters else "a published model"
            yield Preset(size.name, known, family.name)
