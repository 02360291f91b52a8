"""Measures of a model on tasks on rows with answers, which may be others than it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.checkpoints import Loaded
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY
from weft.data.settings import DataSettings
from weft.tasks import TaskConfig, TaskSettings, Validation
from weft.tasks.base import require_fits
from weft.tasks.rows import GeneratedTaskConfig, RowTask, RowTaskConfig
from weft.tasks.token_streams import HeldOut
from weft.tasks.whole_rows import ROWS
from weft.tokenizers.byte import NoTokenizer
from weft.training.config import RunConfig


def measure_rows(loaded: Loaded, run: RunConfig | None, task: str | Mapping[str, Any] | None, *, length: int | None,
                 part: HeldOut, batch_size: int | None) -> Validation:
    """Measure a model, which ``run`` trained, on a task on rows with answers; see `weft.api.measure`."""
    config = row_task(task, None if run is None else run.task)
    config = config if length is None else config.at_length(length)
    data = DataSettings() if run is None else run.data
    if isinstance(config, GeneratedTaskConfig):
        data = DataSettings(split_seed=data.split_seed)
    rows = batch_size or (ROWS if run is None else run.training.batch_size)
    made = RowTask(config, TaskSettings(rows=rows, context=config.longest or loaded.config.context,
                                        labels=loaded.config.labels()))
    require_fits(made, loaded.model)
    return made.measure(loaded.model, made.held_out(data, NoTokenizer(), part))


def row_task(task: str | Mapping[str, Any] | None, own: TaskConfig | None) -> RowTaskConfig:
    """Return the task on rows with answers that ``task`` names, see `measure`; ``own`` is the run's.

    Raises:
        ConfigError: it is another kind of task, or its fields do not fit.
    """
    given = {"kind": task} if isinstance(task, str) else dict(task or {})
    if isinstance(own, RowTaskConfig) and given.get("kind", own.kind) == own.kind:
        found: PartConfig = parse_part(("task",), {**own.dump(), **given})
    elif "kind" in given:
        found = parse_part(("task",), given)
    else:
        raise ConfigError(["task: the model was not trained on rows with answers, and no kind of task is given. Give "
                           f"one of {', '.join(row_kinds())}."])
    if not isinstance(found, RowTaskConfig):
        raise ConfigError([f"task: {found.kind!r} is no task on rows with answers. Give one of "
                           f"{', '.join(row_kinds())}."])
    return found


def row_kinds() -> list[str]:
    """Return the kinds of tasks on rows with answers."""
    return [part.kind for part in REGISTRY.parts("task") if issubclass(part, RowTaskConfig)]
