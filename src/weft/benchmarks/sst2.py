"""SST-2: whether a sentence of a film review is positive."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from weft.benchmarks.sentences import Sentence, SentenceConfig, label_of
from weft.core.errors import DataError
from weft.core.part_config import About
from weft.core.registry import register

NAMES = ["sentence", "label"]


@register
class SST2Config(SentenceConfig):
    """Whether a sentence of a film review is positive: the Stanford Sentiment Treebank with two classes, as in GLUE.

    A language model completes "SENTENCE / Question: Is this sentence positive or negative? / Answer:" (/ is a line end)
    by " negative" or " positive", whichever has the higher score; examples are followed by an empty line. A model whose
    head predicts two classes (task ``classify``) answers by its class. Accuracy is the published measure.

    The data are a TSV file whose first line is "sentence, label", without quoting, or a folder of such files, of which
    ``PART.tsv`` is measured: in GLUE's folder ``dev``, since its test labels are not public.

    Attributes:
        split: the file ``PART.tsv`` of a folder is measured.
        shots: examples before each sentence, drawn from ``train.tsv``; the same for all.
        seed: of the random numbers that draw them.
        divide_by: what a completion's log-probability is divided by.
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
