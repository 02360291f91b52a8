"""Comparing models fairly: a study solves widths, tunes with equal effort, runs with paired seeds, and judges."""

from __future__ import annotations

from weft.comparison.folder import read_result, rerender
from weft.comparison.progress import StudyListener, StudyProgress
from weft.comparison.study import StudyConfig, read_study
from weft.comparison.study_result import StudyResult
from weft.comparison.study_runner import Options, run_study

__all__ = ["Options", "StudyConfig", "StudyListener", "StudyProgress", "StudyResult", "read_result", "read_study",
           "rerender", "run_study"]
