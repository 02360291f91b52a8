"""A study from its file and from what is said besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.comparison.study import StudyConfig
from weft.core.config import parse
from weft.training.files import read_plain
from weft.training.overrides import apply_overrides

WHOLE = ("budget", "length")
"""Keys that are replaced, not merged: another kind of budget has nothing of the old one."""


def read_study(models: Sequence[str | Path] = (), overrides: Iterable[str] = (), *, study: str | Path | None = None,
               given: Mapping[str, Any] | None = None) -> StudyConfig:
    """The study of a file, with changes.

    Args:
        models: presets or paths, each named after itself; one that is named again gets a number.
        overrides: ``key.path=value`` changes to the study.
        study: the file, whose models ``models`` join; None: there is none.
        given: keys that come before the file's.

    Raises:
        ConfigError: listing every problem.
    """
    plain: dict[str, Any] = {} if study is None else read_plain(study)
    for key, value in (given or {}).items():
        old = plain.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and key not in WHOLE:
            plain[key] = {**old, **value}
        else:
            plain[key] = value
    if models or "models" not in plain:
        plain["models"] = _named(plain.get("models") or {}, models)
    return parse(StudyConfig, apply_overrides(plain, overrides), where=None if study is None else str(study))


def _named(known: Mapping[str, Any], models: Sequence[str | Path]) -> dict[str, Any]:
    named = dict(known)
    for model in models:
        path = Path(model)
        name = stem = path.stem if path.suffix in (".yaml", ".yml", ".json") else str(model)
        number = 2
        while name in named:
            name, number = f"{stem}-{number}", number + 1
        named[name] = str(model)
    return named
