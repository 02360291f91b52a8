"""Analysis: what a model costs before it runs, what there is to build from, and what this machine can do."""

from __future__ import annotations

from weft.analysis.catalogue import Entry, catalogue
from weft.analysis.doctor import Diagnosis, doctor
from weft.analysis.plan import Plan, plan

__all__ = ["Diagnosis", "Entry", "Plan", "catalogue", "doctor", "plan"]
