"""Configurations by file or preset."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from weft.core.errors import InputError, nearest
from weft.core.model import ModelConfig
from weft.core.schema import json_schema
from weft.training import RunConfig, load_model_config, load_run
from weft.training.files import read_plain


def presets() -> list[str]:
    """Names of the configurations that come with Weft."""
    return sorted(file.name.removesuffix(".yaml") for file in resources.files("weft.preset_files").iterdir()
                  if file.name.endswith(".yaml"))


def config_path(config: str | Path) -> Path:
    """The file of a configuration: a path, or the name of a preset.

    Raises:
        InputError: neither.
    """
    path = Path(config)
    if path.is_file() or path.suffix in (".yaml", ".yml", ".json"):
        return path
    if str(config) in presets():
        return Path(str(resources.files("weft.preset_files") / f"{config}.yaml"))
    raise InputError(f"{str(config)!r} is neither a file nor a preset.", where="config",
                     remedy=f"{nearest(str(config), presets())} Or give the path of a YAML or JSON file.")


def config_schema(config: str | Path | None = None) -> dict[str, Any]:
    """The JSON Schema of run configurations; of the model's own kind, for a file that holds only a model."""
    alone = config is not None and "kind" in read_plain(config_path(config))
    return json_schema(type(read_model(config)) if config is not None and alone else RunConfig)


def read_run(config: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """A run's configuration from a file or preset, with ``key.path=value`` changes."""
    return load_run(config_path(config), overrides)


def read_model(config: str | Path, overrides: Iterable[str] = ()) -> ModelConfig:
    """A model's configuration from a file or preset of a run or of a model alone."""
    return load_model_config(config_path(config), overrides)
