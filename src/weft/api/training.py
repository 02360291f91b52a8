"""Training one model, or several under one budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.api.arguments import one_or_more
from weft.api.configs import config_path, read_run
from weft.api.lawful import require_lawful
from weft.api.models import require_device
from weft.comparison import Options, StudyConfig, StudyListener, StudyResult, read_study, rerender, run_study
from weft.core.errors import InputError
from weft.training import Event, RunConfig, TrainResult
from weft.training import train as train_run
from weft.training.parallel import World


def train(config: str | Path | RunConfig, overrides: str | Iterable[str] = (), *, out: str | Path = "runs/latest",
          resume: bool = False, allow_inexact: bool = False, unchecked: bool = False, device: str = "cpu",
          on_event: Callable[[Event], None] | None = None) -> TrainResult:
    """Train a run; see `weft.training.train`. A preset's name or a file's path stands for its configuration.

    A model with parts from outside Weft (a plugin's) is held to the laws first, on a small twin, which takes some
    seconds; one that breaks a law is refused unless it is to be trained ``unchecked``. A run that is resumed has been
    through that.

    Under `torchrun` all its processes train it together, see `weft.training.parallel`.
    """
    require_device(device)
    with World.here(device) as world:
        run = config if isinstance(config, RunConfig) else read_run(config, one_or_more(overrides))
        require_device(str(world.device))
        if not (unchecked or resume):
            world.lead(lambda: require_lawful(run.model, on_event))
        return train_run(run, out, resume=resume, allow_inexact=allow_inexact, on_event=on_event, world=world)


def compare(models: str | Sequence[str | Path] = (), overrides: str | Iterable[str] = (), *,
            study: str | Path | StudyConfig | None = None, given: Mapping[str, Any] | None = None,
            out: str | Path = "runs/compare", device: str = "cpu", threads: int | None = None,
            plugins: Sequence[str] = (), command: str = "", on_progress: StudyListener | None = None) -> StudyResult:
    """Train models under one budget and say what each is worth, in ``out`` and as a result.

    What is finished in ``out`` is read back, so that the same call goes on where an interrupted study stopped. Each
    run has a process of its own. Trouble of a model, and of the machine, stands in the result; a study may end without
    a finished run.

    Args:
        models: presets or paths.
        overrides: ``key.path=value`` changes to the study.
        study: a study's file, whose models ``models`` join, or a study.
        given: keys of the study, such as ``{"budget": {"kind": "parameters", "amount": 2e6}}``.
        out: the study's folder.
        device: where to compute.
        threads: of the CPU; as many as torch takes by default.
        plugins: files that add parts, for every process.
        command: that repeats the study, for the report.
        on_progress: told of every line.
    """
    models, overrides = one_or_more(models), one_or_more(overrides)
    if isinstance(study, StudyConfig):
        if models or given or list(overrides):
            raise InputError("models, overrides or given keys beside a study that is an object.", where="study",
                             remedy="Make them part of the object.")
        config = study
    else:
        config = read_study(models, overrides, study=study, given=given)
    options = Options(str(require_device(device)), threads, tuple(plugins), command=command)
    return run_study(config, out, config_path, options, on_progress)


def compare_report(folder: str | Path) -> Path:
    """Write a study's report again from its result."""
    return rerender(folder)
