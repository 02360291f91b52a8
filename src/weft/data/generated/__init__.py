"""Rows of tokens that are made by rule, with the answers to be predicted: no files, any size, any number."""

from __future__ import annotations

from weft.data.generated.associative_recall import AssociativeRecall
from weft.data.generated.copying import SelectiveCopying
from weft.data.generated.examples import GeneratedRows, RowExamples
from weft.data.generated.generator import AnsweredRows, Generator
from weft.data.generated.induction import InductionHeads
from weft.data.generated.listops import ListOps
from weft.data.generated.pathfinder import Pathfinder

__all__ = ["AnsweredRows", "AssociativeRecall", "GeneratedRows", "Generator", "InductionHeads", "ListOps", "Pathfinder",
           "RowExamples", "SelectiveCopying"]
