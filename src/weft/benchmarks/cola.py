"""CoLA: whether a sentence is grammatically acceptable."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from weft.benchmarks.sentences import Sentence, SentenceConfig, label_of
from weft.core.errors import DataError
from weft.core.part_config import About
from weft.core.registry import register


@register
class ColaConfig(SentenceConfig):
    """Whether a sentence is grammatically acceptable: the Corpus of Linguistic Acceptability, as in GLUE.

    A language model completes "SENTENCE / Question: Does this sentence make sense? / Answer:" (/ is a line end) by
    " no" or " yes", whichever has the higher score; examples are followed by an empty line. A model whose head
    predicts two classes (task ``classify``) answers by its class. Matthews' correlation is the published measure: 0 for
    answers that do not depend on the sentence.

    The data are a TSV file without a header and without quoting, or a folder of such files, of which ``PART.tsv`` is
    measured: source, label (1 acceptable, 0 not), the author's mark, sentence.

    Attributes:
        split: the file ``PART.tsv`` of a folder is measured.
        shots: examples before each sentence, drawn from ``train.tsv``; the same for all.
        seed: of the random numbers that draw them.
        divide_by: what a completion's log-probability is divided by.
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
