"""Rows of tokens that are made by rule, with the answers to be predicted: no files, any size, any number."""

from __future__ import annotations

from weft.data.generated.generator import AnsweredRows, GeneratedRows, Generator, RowExamples
from weft.data.generated.listops import ListOps
from weft.data.generated.pathfinder import Pathfinder
from weft.data.generated.recall import AssociativeRecall, InductionHeads, SelectiveCopying

__all__ = ["AnsweredRows", "AssociativeRecall", "GeneratedRows", "Generator", "InductionHeads", "ListOps", "Pathfinder",
           "RowExamples", "SelectiveCopying"]
