"""Analysis: the cost of a model before it runs, the catalogue of parts, and the capabilities of this machine."""

from __future__ import annotations

from weft.analysis.capabilities import Diagnosis, doctor
from weft.analysis.catalogue import catalogue
from weft.analysis.plan import Plan, plan
from weft.index.records import Entry

__all__ = ["Diagnosis", "Entry", "Plan", "catalogue", "doctor", "plan"]
