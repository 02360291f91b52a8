"""The common base of SST-2 and CoLA: sentences of two classes, answered by completion or by a classifier.

CoLA: whether a sentence is grammatically acceptable.

SST-2: whether a sentence of a film review is positive.
"""

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
from weft.core.part_config import About
from weft.core.registry import register
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
        """The sentences of a file. Raises `DataError`: a line is not of the format."""

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
    """A label, 0 or 1. Raises `DataError`: it is neither."""
    if value not in ("0", "1"):
        raise DataError(f"the label is {value!r}, not 0 or 1.", where=where,
                        remedy="Correct that line, or give a file with labels.")
    return int(value)


@register
class ColaConfig(SentenceConfig):
    """Whether a sentence is grammatically acceptable: the Corpus of Linguistic Acceptability, as in GLUE.

    A language model completes "SENTENCE / Question: Does this sentence make sense? / Answer:" (/ is a line end) by
    " no" or " yes", whichever has the higher score; examples are followed by an empty line. A model whose head
    predicts two classes (task ``classify``) answers by its class. Matthews' correlation is the published measure: 0 for
    answers that do not depend on the sentence.

    The data are a TSV file without a header and without quoting, or a folder of such files, of which ``PART.tsv`` is
    measured: source, label (1 acceptable, 0 not), the author's mark, sentence.
    """

    kind: ClassVar[str] = "cola"
    about = About(
        also_called=("acceptability", "linguistic_acceptability", "grammaticality"),
        source="Warstadt et al. 2019, section 3; Wang et al. 2019 (GLUE), section 3.1",
        equation=(r"\hat{y} = \arg\max_{c \in \{\text{no},\,\text{yes}\}} \log p(c \mid \text{prompt}), \qquad "
                  r"\text{MCC} = \frac{TP \cdot TN - FP \cdot FN}{\sqrt{(TP+FP)(TP+FN)(TN+FP)(TN+FN)}}"),
        differs=(("sst2", "asks about grammar in place of sentiment, and is measured by a correlation, since the "
                          "classes are of unequal size."),),
        pictured=(("The book", ""),
                  ("was written by John.", ""),
                  ("Question: Does this sentence make sense?", ""),
                  ("Answer:", " yes")))
    question: ClassVar[str] = "Does this sentence make sense?"
    words: ClassVar[tuple[str, str]] = ("no", "yes")
    class_names: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]] = (("unacceptable",), ("acceptable",))
    main: ClassVar[str] = "matthews"

    @classmethod
    def rows(cls, text: str, file: Path) -> list[Sentence]:
        found: list[Sentence] = []
        for number, line in enumerate(text.split("\n"), 1):
            values, where = line.split("\t"), f"{file}, line {number}"
            if line and len(values) != 4:
                raise DataError(f"{len(values)} values between tabs, not 4.", where=where,
                                remedy="Write source, label, mark and sentence, with a tab between them.")
            if line:
                found.append(Sentence(number, values[3], label_of(values[1].strip(), where)))
        return found


NAMES = ["sentence", "label"]


@register
class SST2Config(SentenceConfig):
    """Whether a sentence of a film review is positive: the Stanford Sentiment Treebank with two classes, as in GLUE.

    A language model completes "SENTENCE / Question: Is this sentence positive or negative? / Answer:" (/ is a line end)
    by " negative" or " positive", whichever has the higher score; examples are followed by an empty line. A model whose
    head predicts two classes (task ``classify``) answers by its class. Accuracy is the published measure.

    The data are a TSV file whose first line is "sentence, label", without quoting, or a folder of such files, of which
    ``PART.tsv`` is measured: in GLUE's folder ``dev``, since its test labels are not public.
    """

    kind: ClassVar[str] = "sst2"
    about = About(
        also_called=("sst", "sst_2", "sentiment", "stanford_sentiment_treebank"),
        source="Socher et al. 2013, section 5.2; Wang et al. 2019 (GLUE), section 3.1",
        equation=(r"\hat{y} = \arg\max_{c \in \{\text{negative},\,\text{positive}\}} \log p(c \mid \text{prompt}), "
                  r"\qquad \text{accuracy} = \frac{1}{n} \sum_{i=1}^{n} [\hat{y}_i = y_i]"),
        differs=(("cola", "asks about sentiment in place of grammar, and is measured by the accuracy."),),
        pictured=(("a gripping, funny film", ""),
                  ("Question: Is this sentence positive or negative?", ""),
                  ("Answer:", " positive")))
    question: ClassVar[str] = "Is this sentence positive or negative?"
    words: ClassVar[tuple[str, str]] = ("negative", "positive")
    class_names: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]] = (("negative", "neg"), ("positive", "pos"))
    main: ClassVar[str] = "accuracy"

    @classmethod
    def rows(cls, text: str, file: Path) -> list[Sentence]:
        first, *lines = text.split("\n")
        if first.split("\t") != NAMES:
            raise DataError(f"the first line is {first[:60]!r}, not the names sentence and label.",
                            where=f"{file}, line 1", remedy="Give a file of SST-2 as GLUE has it, with labels.")
        found: list[Sentence] = []
        for number, line in enumerate(lines, 2):
            values, where = line.split("\t"), f"{file}, line {number}"
            if line and len(values) != 2:
                raise DataError(f"{len(values)} values between tabs, not 2.", where=where,
                                remedy="Write a sentence, a tab and its label.")
            if line:
                found.append(Sentence(number, values[0], label_of(values[1].strip(), where)))
        return found
