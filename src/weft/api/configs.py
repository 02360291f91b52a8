"""Configurations from files, presets and published models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from weft.core.config import parse
from weft.core.errors import InputError
from weft.core.model import ModelConfig
from weft.core.part_config import Settings
from weft.core.schema import json_schema
from weft.families.family import name_hint
from weft.preset_files.published_models import published, size_named
from weft.training.averages import published_run
from weft.training.config import RunConfig, TrainingSettings
from weft.training.files import parse_model_config, parse_run, read_plain
from weft.training.folder import CONFIG_YAML, RUN_FILE
from weft.training.overrides import run_overrides
from weft.training.starting import begun_from

Config: TypeAlias = str | Path | Mapping[str, Any] | RunConfig | ModelConfig
"""A configuration of a run, or of a model alone: the path of its file, the name of a preset or of a published model,
plain data, or an object."""


def own_presets() -> list[str]:
    """Return the names of the small runs that come with Weft."""
    return sorted(file.name.removesuffix(".yaml") for file in resources.files("weft.preset_files").iterdir()
                  if file.name.endswith(".yaml"))


def presets() -> list[str]:
    """Return the names that stand for configurations: Weft's small runs, and published models."""
    return [*own_presets(), *sorted({*published(), *(name for size in published().values() for name in size.also)})]


def preset_hint(name: str) -> str:
    """Return what may have been meant by a name that stands for no configuration."""
    return name_hint(name, own_presets())


def read_config(config: Config) -> dict[str, Any]:
    """Return the plain data of a configuration.

    Raises:
        InputError: a name that is neither a path, a preset nor a published model.
        ConfigError: the file cannot be read.
    """
    if isinstance(config, RunConfig | ModelConfig):
        return config.dump()
    if isinstance(config, Mapping):
        return dict(config)
    size = None if Path(config).is_file() or str(config) in own_presets() else size_named(str(config))
    return read_plain(config_path(config)) if size is None else published_run(size)


def config_path(config: str | Path) -> Path:
    """Return the file of a configuration, which is given as a path or as the name of one of Weft's own presets.

    Raises:
        InputError: it is neither.
    """
    path = Path(config)
    if path.is_file() or path.suffix in (".yaml", ".yml", ".json"):
        return path
    if str(config) in own_presets():
        return Path(str(resources.files("weft.preset_files") / f"{config}.yaml"))
    raise InputError(f"{str(config)!r} is neither a file nor a preset.", where="config",
                     remedy=f"{preset_hint(str(config))} Or give the path of a YAML or JSON file.")


def config_schema(config: Config | None = None) -> dict[str, Any]:
    """Return the JSON Schema of run configurations, or for a file that holds only a model, that of the model's kind."""
    alone = config is not None and "kind" in read_config(config)
    return json_schema(type(read_model(config)) if config is not None and alone else RunConfig)


def read_run(config: Config, overrides: Iterable[str] = (), *, start: str | Path | None = None) -> RunConfig:
    """Read a run's configuration, also from a run's folder, and apply ``key.path=value`` changes. With ``start`` the
    run begins with the model and tokenizer of that folder in place of its own; see
    `weft.training.starting.begun_from`."""
    if isinstance(config, RunConfig) and start is None and not list(overrides):
        return config
    data = read_config(run_file(config) or config)
    return parse_run(data if start is None else begun_from(data, start), overrides, where=_where(config))


def run_file(config: object) -> Path | None:
    """Return the configuration in a run's folder; None: ``config`` is no folder of a run."""
    if not isinstance(config, str | Path):
        return None
    path = Path(config)
    return path / CONFIG_YAML if (path / RUN_FILE).is_file() and str(config) not in presets() else None


def training_of(config: Config, overrides: Iterable[str] = ()) -> TrainingSettings:
    """Return how the run of a configuration is trained.

    Raises:
        ConfigError: the section ``training`` cannot be parsed.
    """
    training = run_overrides(read_config(config), overrides).get("training", {})
    return parse(TrainingSettings, training, where="training")


def forms_of(config: Config, overrides: Iterable[str] = ()) -> dict[str, str]:
    """Return the forms of operations that the run of a configuration names, by operation.

    Raises:
        ConfigError: the section ``kernels`` cannot be parsed.
    """
    kernels = run_overrides(read_config(config), overrides).get("kernels", {})
    return parse(_Forms, {"kernels": kernels}).kernels


class _Forms(Settings):
    """The part of a run's configuration that names forms.

    Attributes:
        kernels: as in `weft.training.RunConfig`.
    """

    kernels: dict[str, str]


def read_model(config: Config, overrides: Iterable[str] = ()) -> ModelConfig:
    """Read a model's configuration, from that of a run or of a model alone, and apply changes."""
    return parse_model_config(read_config(config), overrides, where=_where(config))


def _where(config: Config) -> str | None:
    """The name of a configuration in errors: its path or name; None: it is in memory."""
    return str(config) if isinstance(config, str | Path) else None


T = TypeVar("T")


def one_or_more(given: str | Iterable[T]) -> list[T | str]:
    """Return a single string as a list of one item, rather than of its characters, and any other iterable as a list."""
    return [given] if isinstance(given, str) else list(given)
