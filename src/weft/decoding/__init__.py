"""Generation from any language model: rows of prompts in, tokens out. The package depends on `LanguageModel`, `State`,
`Span` and `Tokenizer`, and on no particular architecture."""

from __future__ import annotations

from weft.decoding.beam import Beams, Hypothesis, LengthFormula, beam_search
from weft.decoding.choosing import Constraint, RowSettings
from weft.decoding.compiled import CompiledStep
from weft.decoding.generate import generate, stream
from weft.decoding.prompts import Ragged, ragged
from weft.decoding.rows import Row, RowLike, WordsRow, parse_rows, read_rows, read_rows_or_words
from weft.decoding.sampling import GREEDY, Sampling, combined
from weft.decoding.slots import Slots
from weft.decoding.stopping import NEVER, Ending, Generated, GeneratedRow, NewToken

__all__ = ["GREEDY", "NEVER", "Beams", "CompiledStep", "Constraint", "Ending", "Generated", "GeneratedRow",
           "Hypothesis", "LengthFormula", "NewToken", "Ragged", "Row", "RowLike", "RowSettings", "Sampling", "Slots",
           "WordsRow", "beam_search", "combined", "generate", "parse_rows", "ragged", "read_rows",
           "read_rows_or_words", "stream"]
