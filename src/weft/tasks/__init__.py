"""Tasks: what a batch is and how it is made, the loss with the count it is divided by, and what is measured."""

from __future__ import annotations

from weft.data.batch_source import Lengths
from weft.tasks.base import (
    AnyTask,
    BatchSums,
    Count,
    Examples,
    Rows,
    SourcedRows,
    Task,
    TaskConfig,
    TaskDeclared,
    TaskSettings,
)
from weft.tasks.objective import ObjectiveSettings
from weft.tasks.token_streams import Material
from weft.tasks.validation import Validation

__all__ = ["AnyTask", "BatchSums", "Count", "Examples", "Lengths", "Material", "ObjectiveSettings", "Rows",
           "SourcedRows", "Task", "TaskConfig", "TaskDeclared", "TaskSettings", "Validation"]
