"""Tasks: what a batch is and how it is made, the loss with the count it is divided by, and what is measured."""

from __future__ import annotations

from weft.tasks.base import BatchSums, Count, Examples, Lengths, SourcedRows, Task, TaskConfig, TaskSettings
from weft.tasks.material import Material
from weft.tasks.objective import ObjectiveSettings
from weft.tasks.validation import Validation

__all__ = [
           "BatchSums",
           "Count",
           "Examples",
           "Lengths",
           "Material",
           "ObjectiveSettings",
           "SourcedRows",
           "Task",
           "TaskConfig",
           "TaskSettings",
           "Validation",
]
