"""Configurations from files and presets."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from weft.core.config import parse
from weft.core.errors import InputError, nearest
from weft.core.model import ModelConfig
from weft.core.schema import json_schema
from weft.training import RunConfig, TrainingSettings, load_model_config, load_run
from weft.training.files import read_plain
from weft.training.overrides import run_overrides


def presets() -> list[str]:
    """Return the names of the configurations that come with Weft."""
    return sorted(file.name.removesuffix(".yaml") for file in resources.files("weft.preset_files").iterdir()
                  if file.name.endswith(".yaml"))


def config_path(config: str | Path) -> Path:
    """Return the file of a configuration, which is given as a path or as the name of a preset.

    Raises:
        InputError: it is neither.
    """
    path = Path(config)
    if path.is_file() or path.suffix in (".yaml", ".yml", ".json"):
        return path
    if str(config) in presets():
        return Path(str(resources.files("weft.preset_files") / f"{config}.yaml"))
    raise InputError(f"{str(config)!r} is neither a file nor a preset.", where="config",
                     remedy=f"{nearest(str(config), presets())} Or give the path of a YAML or JSON file.")


def config_schema(config: str | Path | None = None) -> dict[str, Any]:
    """Return the JSON Schema of run configurations, or for a file that holds only a model, that of the model's kind."""
    alone = config is not None and "kind" in read_plain(config_path(config))
    return json_schema(type(read_model(config)) if config is not None and alone else RunConfig)


def read_run(config: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a run's configuration from a file or preset, and apply ``key.path=value`` changes."""
    return load_run(config_path(config), overrides)


def trained_patterns(config: str | Path, overrides: Iterable[str] = ()) -> list[str] | None:
    """Return what trains in the run of a file or preset (``training.train``); None: everything does.

    Raises:
        ConfigError: the section ``training`` cannot be parsed.
    """
    training = run_overrides(read_plain(config_path(config)), overrides).get("training", {})
    return parse(TrainingSettings, training, where="training").train


def read_model(config: str | Path, overrides: Iterable[str] = ()) -> ModelConfig:
    """Read a model's configuration from a file or preset, of a run or of a model alone, and apply changes."""
    return load_model_config(config_path(config), overrides)
