"""Every name of `weft.training`."""

from __future__ import annotations

from weft.tasks import Validation
from weft.training.config import DataSettings, ReportSettings, RunConfig, TrainingSettings
from weft.training.events import Event, Notice, Progress, Saved, Started, Validated, print_event
from weft.training.files import load_model_config, load_run, parse_run
from weft.training.interrupt import Terminated
from weft.training.run_training import TrainResult, train

__all__ = ["DataSettings", "Event", "Notice", "Progress", "ReportSettings", "RunConfig", "Saved", "Started",
           "Terminated", "TrainResult", "TrainingSettings", "Validated", "Validation", "load_model_config", "load_run",
           "parse_run", "print_event", "train"]
