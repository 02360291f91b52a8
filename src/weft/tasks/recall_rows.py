"""Tasks of memory on generated rows: selective copying, induction heads, multi-query associative recall."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from weft.core.config import rule
from weft.core.part_config import About
from weft.core.registry import register
from weft.data.generated import AssociativeRecall, InductionHeads, SelectiveCopying
from weft.tasks.rows import GeneratedTaskConfig

MOST_TOKENS = 1 << 22
"""Tokens of a generated row at most."""
MOST_IDS = 1 << 22
"""Ids of a vocabulary at most."""


@register
class SelectiveCopyingConfig(GeneratedTaskConfig):
    """Repeat the data tokens of a row in order, leaving out the noise between them.

    ``data_tokens`` data tokens stand at random places among noise; then come as many markers, at which the model
    predicts the data tokens in order. A model whose dynamics do not depend on its inputs cannot leave the noise out.
    The defaults are the paper's: of 16 ids one is noise and one the marker; the length counts the markers.

    Attributes:
        length: tokens of a row.
        data_tokens: data tokens of a row.
        symbols: ids of the vocabulary.
    """

    kind: ClassVar[str] = "selective_copying"
    about = About(
        also_called=("copying", "selective_copy", "copy"),
        source="Gu and Dao 2023, section 3.1 and appendix E.1; Arjovsky et al. 2016, section 4.1 (copying)",
        equation=r"x = \ldots a_1 \ldots a_2 \ldots a_n \ldots | \cdots | \;\to\; a_1 a_2 \ldots a_n",
        differs=(("mqar", "what is recalled is found by its order in place of its key."),
                 ("induction_heads", "many tokens are recalled.")),
        pictured=(("noise", ""), ("3", ""), ("noise", ""), ("8", ""), ("noise", ""), ("marker", "3"), ("marker", "8")))

    length: int = Field(default=4096, gt=1, le=MOST_TOKENS)
    data_tokens: int = Field(default=16, gt=0)
    symbols: int = Field(default=16, gt=3, le=MOST_IDS)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.length < 2 * self.data_tokens:
            raise rule("length", f"{self.length} tokens, while {self.data_tokens} data tokens and as many markers take "
                       f"{2 * self.data_tokens}.", f"Give length: {2 * self.data_tokens} or more, or fewer tokens.")
        return self

    @property
    def generator(self) -> SelectiveCopying:
        return SelectiveCopying(self.length, self.symbols, self.data_tokens)

    def at_length(self, length: int) -> Self:
        return self.changed({"length": length})

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(length=12, data_tokens=3, symbols=5, held_out=8)]


@register
class InductionHeadsConfig(GeneratedTaskConfig):
    """Predict the token that followed the trigger before, when the trigger comes again at the end of a row.

    The defaults are the paper's: 16 ids, of which the last is the trigger, and rows of 256 tokens; it tests on rows
    from 64 to 2^20.

    Attributes:
        length: tokens of a row.
        symbols: ids of the vocabulary.
    """

    kind: ClassVar[str] = "induction_heads"
    about = About(
        also_called=("induction", "induction_head"),
        source="Olsson et al. 2022; Gu and Dao 2023, section 4.1.2 and appendix E.1",
        equation=r"x = \ldots\, a\, b \ldots\, a \;\to\; b",
        differs=(("mqar", "one pair is recalled, and the key is always the same."),
                 ("selective_copying", "one token is recalled in place of many.")),
        pictured=(("4", ""), ("9", ""), ("trigger", ""), ("7", ""), ("2", ""), ("5", ""), ("trigger", "7")))

    length: int = Field(default=256, gt=2, le=MOST_TOKENS)
    symbols: int = Field(default=16, gt=2, le=MOST_IDS)

    @property
    def generator(self) -> InductionHeads:
        return InductionHeads(self.length, self.symbols)

    def at_length(self, length: int) -> Self:
        return self.changed({"length": length})

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(length=9, symbols=5, held_out=8)]


@register
class AssociativeRecallConfig(GeneratedTaskConfig):
    """Predict the value of each key that comes again, after a list of keys with their values.

    The row begins with ``pairs`` different keys, each followed by its value; no id is both. Later every key comes once
    more, after a gap that follows a power law, and the model predicts its value. A model that answers with any value of
    the row is right in 1 of ``pairs`` cases. The defaults are those of the paper's smallest rows.

    Attributes:
        length: tokens of a row, even.
        pairs: keys of a row.
        symbols: ids of the vocabulary, of which the lower half are keys and the upper half values.
        power: the gap's power law; near 0 short gaps are the most likely, at 1 all are equally likely.
        random_filler: fill the places between the queries with random ids, as the paper's code does; otherwise with
            id 0.
    """

    kind: ClassVar[str] = "mqar"
    about = About(
        also_called=("multi_query_associative_recall", "associative_recall", "recall"),
        source="Arora et al. 2023 (Zoology), section 3.2 and appendix C.1",
        equation=r"x = k_1 v_1 \ldots k_n v_n \ldots k_i \;\to\; v_i",
        differs=(("induction_heads", "there are many pairs, all of which are asked for."),
                 ("selective_copying", "what is recalled is found by its key in place of its order.")),
        pictured=(("key 1", ""),
                  ("value 4", ""),
                  ("key 2", ""),
                  ("value 7", ""),
                  ("filler", ""),
                  ("key 2", "value 7"),
                  ("filler", ""),
                  ("key 1", "value 4")))

    length: int = Field(default=64, gt=3, le=MOST_TOKENS)
    pairs: int = Field(default=4, gt=0)
    symbols: int = Field(default=8192, gt=3, le=MOST_IDS)
    power: float = Field(default=0.01, gt=0, le=1)
    random_filler: bool = True

    @model_validator(mode="after")
    def _fits(self) -> Self:
        keys = self.symbols // 2 - 1
        if self.length % 2:
            raise rule("length", f"{self.length} tokens, while rows consist of pairs of tokens.",
                       f"Give {self.length + 1}.")
        if self.length < 4 * self.pairs:
            raise rule("length", f"{self.length} tokens, while {self.pairs} pairs and a slot of two tokens for each "
                       f"query take {4 * self.pairs}.", f"Give length: {4 * self.pairs} or more, or fewer pairs.")
        if keys < self.pairs:
            raise rule("symbols", f"{self.symbols} ids, of which {keys} are keys, for {self.pairs} different keys.",
                       f"Give symbols: {2 * self.pairs + 2} or more, or fewer pairs.")
        return self

    @property
    def generator(self) -> AssociativeRecall:
        return AssociativeRecall(self.length, self.symbols, self.pairs, self.power, self.random_filler)

    def at_length(self, length: int) -> Self:
        return self.changed({"length": length})

    @classmethod
    def examples(cls) -> list[Self]:
        small = {"length": 12, "pairs": 2, "symbols": 10, "held_out": 8}
        return [cls.model_validate(small), cls.model_validate({**small, "power": 1.0, "random_filler": False})]
