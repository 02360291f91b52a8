"""MMLU: questions with four choices from 57 subjects."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from weft.benchmarks.base import BenchmarkConfig, Conditions, FileReader, context_line, found, marked, tokenizer_line
from weft.benchmarks.result import MEAN_ERROR, BenchmarkProtocol, BenchmarkResult, Score, macro_score, mean_score
from weft.benchmarks.text_model import Question, TextModel
from weft.core.config import rule
from weft.core.errors import DataError, InputError, nearest
from weft.core.part_config import About
from weft.core.registry import register

LETTERS = ("A", "B", "C", "D")
SUBJECTS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "stem": ("abstract_algebra", "anatomy", "astronomy", "college_biology", "college_chemistry",
             "college_computer_science", "college_mathematics", "college_physics", "computer_security",
             "conceptual_physics", "electrical_engineering", "elementary_mathematics", "high_school_biology",
             "high_school_chemistry", "high_school_computer_science", "high_school_mathematics", "high_school_physics",
             "high_school_statistics", "machine_learning"),
    "humanities": ("formal_logic", "high_school_european_history", "high_school_us_history",
                   "high_school_world_history", "international_law", "jurisprudence", "logical_fallacies",
                   "moral_disputes", "moral_scenarios", "philosophy", "prehistory", "professional_law",
                   "world_religions"),
    "social sciences": ("econometrics", "high_school_geography", "high_school_government_and_politics",
                        "high_school_macroeconomics", "high_school_microeconomics", "high_school_psychology",
                        "human_sexuality", "professional_psychology", "public_relations", "security_studies",
                        "sociology", "us_foreign_policy"),
    "other": ("business_ethics", "clinical_knowledge", "college_medicine", "global_facts", "human_aging", "management",
              "marketing", "medical_genetics", "miscellaneous", "nutrition", "professional_accounting",
              "professional_medicine", "virology")})
"""The 57 subjects in the four groups of the paper's Table 1."""
ALL = tuple(sorted(subject for group in SUBJECTS.values() for subject in group))
HEADER = "The following are multiple choice questions (with answers) about {}.\n\n"


@dataclass(frozen=True)
class Item:
    """A question.

    Attributes:
        number: of the line at which it ends in its file, from 1.
    """

    number: int
    text: str
    choices: tuple[str, ...]
    right: int

    def asked(self) -> str:
        """The question with its choices, up to the answer."""
        choices = "".join(f"\n{letter}. {choice}" for letter, choice in zip(LETTERS, self.choices, strict=True))
        return f"{self.text}{choices}\nAnswer:"

    def shown(self) -> str:
        """The question with its answer, as an example."""
        return f"{self.asked()} {LETTERS[self.right]}\n\n"


@register
class MMLUConfig(BenchmarkConfig):
    """Questions with four choices from 57 subjects, answered by the letter with the highest log-probability.

    A prompt is the line "The following are multiple choice questions (with answers) about SUBJECT.", an empty line,
    the first ``shots`` questions of the subject's development file with their answers, and the question with its
    choices, up to "Answer:". The completions are " A", " B", " C" and " D". The accuracy over all questions (micro) and
    the mean of the subjects' accuracies (macro) are reported, with those of every subject and of the paper's four
    groups, each the mean over its questions.

    The data are a folder with ``dev/SUBJECT_dev.csv`` and ``test/SUBJECT_test.csv``: six columns without a header,
    question, four choices, letter. In the authors' code two spaces stand before the subject's name, and examples are
    left out where the prompt is too long; here there is one space, and a long prompt is cut on the left.

    Attributes:
        shots: examples before each question.
        subjects: those to measure; empty: all 57.
        split: the files that are measured.
    """

    kind: ClassVar[str] = "mmlu"
    about = About(
        also_called=("hendrycks_test", "hendryckstest", "massive_multitask", "multiple_choice_questions"),
        source="Hendrycks et al. 2021, sections 3 and 4",
        equation=(r"\hat{y} = \arg\max_{c \in \{A, B, C, D\}} \log p(c \mid \text{examples}, \text{question}), \qquad "
                  r"\text{macro} = \frac{1}{57} \sum_{s=1}^{57} \text{accuracy}_s"),
        differs=(("lambada", "four answers are offered, where lambada asks for any word."),
                 ("cola", "knowledge of 57 subjects is asked for, with worked examples before each question.")),
        pictured=(("What is 2 + 3?", ""), ("A. 4", ""), ("B. 5", ""), ("C. 6", ""), ("D. 7", ""), ("Answer:", " B")))

    shots: int = Field(default=5, ge=0)
    subjects: tuple[str, ...] = ()
    split: Literal["test", "val"] = "test"

    @field_validator("subjects")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in value if name not in ALL]:
            raise rule("", f"no subject {unknown[0]!r}.", nearest(unknown[0], ALL))
        return tuple(dict.fromkeys(value))

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(shots=0, subjects=("anatomy",), split="val")]

    def measure(self, model: TextModel, data: Path, conditions: Conditions) -> BenchmarkResult:
        reading, names = FileReader(data), self.subjects or ALL
        self._require_files(data, names)
        asked = [(name, item, question) for name in names
                 for item, question in self._questions(reading, data, name, conditions.limit)]
        answers = model.answers([question for _, _, question in asked])
        requests: list[dict[str, Any]] = []
        for (name, item, question), answer in zip(asked, answers, strict=True):
            record = marked(question, answer, [each.log_prob for each in answer], item.right)
            requests.append({"subject": name, "line": item.number, **record})
        protocol = BenchmarkProtocol(
            HEADER.format("{subject}") + "{examples}{question}\nA. {a}\nB. {b}\nC. {c}\nD. {d}\nAnswer:",
            f"{self.shots}, the first of each subject's dev file", "the letter with the highest "
            "log-probability after the prompt, of equal ones the first", "none",
            tokenizer_line(model), context_line(model), sum(each["cut"] > 0 for each in requests),
            reading.material.describe(), f"{MEAN_ERROR}; of the macro average: sqrt(sum of squares of the subjects' "
            "errors) / subjects", conditions.limit)
        return found(self, model, _scores(requests, names), protocol, asked[0][2].prompt, requests)

    def _require_files(self, data: Path, names: tuple[str, ...]) -> None:
        if not data.is_dir():
            raise DataError("not a folder, while MMLU has one file for each subject.", where=str(data),
                            remedy="Give the folder with dev/ and test/.")
        splits = [self.split, *(["dev"] if self.shots else [])]
        missing = [f"{split}/{name}_{split}.csv" for split in splits for name in names
                   if not _file(data, name, split).is_file()]
        if missing:
            there = [name for name in ALL if all(_file(data, name, split).is_file() for split in splits)]
            say = f"{{kind: mmlu, subjects: [{', '.join(there)}]}}" if there else "a folder that has them"
            raise DataError(f"{len(missing)} files of {len(names)} subjects are missing: {', '.join(missing)}.",
                            where=str(data), remedy=f"Add them, or measure what is there: {say}.")

    def _questions(self, reading: FileReader, data: Path, name: str, limit: int | None) -> list[tuple[Item, Question]]:
        """The questions of a subject with their prompts."""
        shown: list[Item] = []
        if self.shots:
            file = _file(data, name, "dev")
            shown = _items(reading.text(file), file)
        if len(shown) < self.shots:
            raise InputError(f"{self.shots} examples, and the dev file of {name} has {len(shown)}.", where="shots",
                             remedy="Give fewer.")
        head = HEADER.format(name.replace("_", " ")) + "".join(item.shown() for item in shown[:self.shots])
        file = _file(data, name, self.split)
        return [(item, Question(head + item.asked(), tuple(f" {letter}" for letter in LETTERS)))
                for item in _items(reading.text(file), file)[:limit]]


def _file(data: Path, name: str, split: str) -> Path:
    return data / split / f"{name}_{split}.csv"


def _items(text: str, file: Path) -> list[Item]:
    """The questions of a file. Raises `DataError`: a row has not six values, an answer is no letter, a quote is open,
    or there are none."""
    items, rows = list[Item](), csv.reader(StringIO(text), strict=True)
    try:
        for row in rows:
            where = f"{file}, line {rows.line_num}"
            if row and len(row) != 6:
                raise DataError(f"{len(row)} values, while a question has 6: text, four choices, letter.", where=where,
                                remedy="Correct that row, or quote values that hold a comma or a line end.")
            if row and row[5].strip() not in LETTERS:
                raise DataError(f"the answer is {row[5]!r}, not one of A, B, C and D.", where=where,
                                remedy="Correct that row; answers 0 to 3 are to be written as letters.")
            if row:
                items.append(Item(rows.line_num, row[0].strip(), tuple(row[1:5]), LETTERS.index(row[5].strip())))
    except csv.Error as error:
        raise DataError(f"the table cannot be read ({error}).", where=f"{file}, line {rows.line_num}",
                        remedy="Close every quote, and double quotes within quoted values.") from None
    if not items:
        raise DataError("the file has no question.", where=str(file), remedy="Give a file that has some.")
    return items


def _scores(requests: list[dict[str, Any]], names: tuple[str, ...]) -> list[Score]:
    def correct(wanted: tuple[str, ...]) -> list[float]:
        return [float(each["correct"]) for each in requests if each["subject"] in wanted]

    subjects = [mean_score("accuracy", correct((name,)), name) for name in names]
    groups = [mean_score("accuracy", values, group) for group, members in SUBJECTS.items()
              if (values := correct(members))]
    return [macro_score("macro_accuracy", subjects), mean_score("micro_accuracy", correct(names)), *groups, *subjects]
