"""The common base of SST-2 and CoLA: sentences of two classes, answered by completion or by a classifier."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from weft.benchmarks.base import (
    BenchmarkConfig,
    Conditions,
    FileReader,
    context_line,
    digest_of,
    found,
    marked,
    tokenizer_line,
)
from weft.benchmarks.result import MEAN_ERROR, BenchmarkProtocol, BenchmarkResult, Score, mean_score
from weft.benchmarks.text_model import Question, TextModel
from weft.core.errors import DataError, InputError, UnsupportedError
from weft.evaluation.completions import Likelihood
from weft.tasks.classes import ClassCounts

JACKKNIFE = "of Matthews' correlation: the jackknife"
NORMALISATIONS = {"none": "none", "bytes": "log-probabilities divided by the UTF-8 "
                  "bytes of the completion", "tokens": "log-probabilities divided by the tokens of the completion"}


@dataclass(frozen=True)
class Sentence:
    """A labelled sentence.

    Attributes:
        line: its number in the file, from 1.
        text: as in the file.
        label: 0 or 1.
    """

    line: int
    text: str
    label: int


class SentenceConfig(BenchmarkConfig):
    """Base of benchmarks on sentences of two classes.

    Class attributes:
        question: put to each sentence, in the line after it.
        words: completions of the two classes, after a space.
        class_names: other names that a classifier's classes may have besides 0 and 1.
        main: the measure that is reported first.

    Attributes:
        split: the file ``PART.tsv`` of a folder is measured.
        shots: examples before each sentence, drawn from ``train.tsv``; the same for all.
        seed: of the random numbers that draw them.
        divide_by: what a completion's log-probability is divided by.
    """

    question: ClassVar[str]
    words: ClassVar[tuple[str, str]]
    class_names: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]]
    main: ClassVar[str]

    split: str = Field(default="dev", min_length=1)
    shots: int = Field(default=0, ge=0)
    seed: int = Field(default=0, ge=0)
    divide_by: Literal["none", "bytes", "tokens"] = "none"

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(split="test", shots=4, seed=1, divide_by="bytes"), cls(divide_by="tokens")]

    @classmethod
    @abstractmethod
    def rows(cls, text: str, file: Path) -> list[Sentence]:
        """The sentences of a file.

        Raises:
            DataError: a line is not of the format.
        """

    def measure(self, model: TextModel, data: Path, conditions: Conditions) -> BenchmarkResult:
        reading = FileReader(data)
        file = data / f"{self.split}.tsv" if data.is_dir() else data
        sentences = self._read(reading, file)[:conditions.limit]
        if model.classifies:
            return self._by_class(model, sentences, reading, conditions)
        return self._by_completion(model, sentences, self._shown(reading, file), reading, conditions)

    def _read(self, reading: FileReader, file: Path) -> list[Sentence]:
        sentences = self.rows(reading.text(file), file)
        if not sentences:
            raise DataError("the file has no sentence.", where=str(file), remedy="Give a file that has some.")
        return sentences

    def _shown(self, reading: FileReader, file: Path) -> list[Sentence]:
        """The examples before each sentence."""
        if not self.shots:
            return []
        train = file.parent / "train.tsv"
        if not train.is_file():
            raise DataError("no file of examples.", where=str(train), remedy="Add it, or leave out shots.")
        known = self._read(reading, train)
        if len(known) < self.shots:
            raise InputError(f"{self.shots} examples, and {train.name} has {len(known)}.", where="shots",
                             remedy="Give fewer.")
        return random.Random(self.seed).sample(known, self.shots)

    def _prompt(self, text: str) -> str:
        return f"{text.strip()}\nQuestion: {self.question}\nAnswer:"

    def _by_completion(self, model: TextModel, sentences: Sequence[Sentence], shown: Sequence[Sentence],
                       reading: FileReader, conditions: Conditions) -> BenchmarkResult:
        head = "".join(f"{self._prompt(each.text)} {self.words[each.label]}\n\n" for each in shown)
        asked = [Question(head + self._prompt(each.text), tuple(f" {word}" for word in self.words))
                 for each in sentences]
        requests: list[dict[str, Any]] = []
        for sentence, question, answer in zip(sentences, asked, model.answers(asked), strict=True):
            scores = [self._score(each, word) for each, word in zip(answer, question.completions, strict=True)]
            requests.append({"line": sentence.line, **marked(question, answer, scores, sentence.label)})
        shots = f"{self.shots}, drawn from train.tsv by seed {self.seed}" if self.shots else "none"
        protocol = BenchmarkProtocol(
            "{examples}" + self._prompt("{sentence}"), shots, "the completion with the higher score, of equal ones the "
            f"first: {' or '.join(repr(f' {word}') for word in self.words)}", NORMALISATIONS[self.divide_by],
            tokenizer_line(model), context_line(model), sum(each["cut"] > 0 for each in requests),
            reading.material.describe(), f"{MEAN_ERROR}; {JACKKNIFE}", conditions.limit)
        return found(self, model, self._scores(requests), protocol, asked[0].prompt, requests)

    def _score(self, answer: Likelihood, completion: str) -> float:
        sizes = {"none": 1, "bytes": len(completion.encode()), "tokens": answer.tokens}
        return answer.log_prob / sizes[self.divide_by]

    def _by_class(self, model: TextModel, sentences: Sequence[Sentence], reading: FileReader,
                  conditions: Conditions) -> BenchmarkResult:
        """The answers of a classifier, which reads each sentence alone, as the file has it."""
        if self.shots or self.divide_by != "none":
            raise InputError("a classifier reads no examples and scores no completions.", where="shots, divide_by",
                             remedy="Leave them out.")
        labels = self._labels(model)
        predicted = [labels[name] for name in model.classes([each.text for each in sentences])]
        requests = [{"line": each.line, "prompt_sha256": digest_of(each.text), "choice": choice, "right": each.label,
                     "correct": choice == each.label} for each, choice in zip(sentences, predicted, strict=True)]
        protocol = BenchmarkProtocol(
            "{sentence}", "none", "the class that the model's head finds most probable",
            "none", tokenizer_line(model, "a sentence as the task classify encodes it"),
            f"rows of at most {model.context:,} tokens, longer sentences cut at the end", 0,
            reading.material.describe(), f"{MEAN_ERROR}; {JACKKNIFE}", conditions.limit)
        return found(self, model, self._scores(requests), protocol, sentences[0].text, requests)

    def _labels(self, model: TextModel) -> dict[str, int]:
        """The meaning of each class of the head."""
        known = {name: label for label, names in enumerate(self.class_names) for name in (str(label), *names)}
        own = model.class_names()
        found = {name: known[name.lower()] for name in own if name.lower() in known}
        if len(own) != 2 or set(found.values()) != {0, 1}:
            raise UnsupportedError(f"the model's classes are {', '.join(map(repr, own))}.", where="model.head",
                                   remedy=f"{self.kind} needs two, called 0 and 1, or "
                                   f"{' and '.join(names[0] for names in self.class_names)}.")
        return found

    def _scores(self, requests: Sequence[dict[str, Any]]) -> list[Score]:
        counts = ClassCounts(2)
        counts.add(np.array([each["right"] for each in requests]), np.array([each["choice"] for each in requests]))
        scores = [mean_score("accuracy", [float(each["correct"]) for each in requests]),
                  Score("matthews", counts.matthews, counts.matthews_error, len(requests))]
        return sorted(scores, key=lambda score: score.name != self.main)


def label_of(value: str, where: str) -> int:
    """A label, 0 or 1.

    Raises:
        DataError: it is neither.
    """
    if value not in ("0", "1"):
        raise DataError(f"the label is {value!r}, not 0 or 1.", where=where,
                        remedy="Correct that line, or give a file with labels.")
    return int(value)
