"""LAMBADA: the last word of a passage."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field

from weft.benchmarks.base import BenchmarkConfig, Conditions, FileReader, context_line, digest_of, found, tokenizer_line
from weft.benchmarks.result import MEAN_ERROR, BenchmarkProtocol, BenchmarkResult, mean_score, perplexity_score
from weft.benchmarks.text_model import Question, TextModel
from weft.core.errors import DataError
from weft.core.part_config import About
from weft.core.registry import register
from weft.data.compression import content_suffix
from weft.data.records import JSONL_SUFFIXES
from weft.disk.documents import Unreadable, parse_json


@register
class LambadaConfig(BenchmarkConfig):
    """The last word of a passage, which its whole text is needed to guess, predicted from all the words before it.

    The word is what follows the last space. The space is part of the completion, so that a vocabulary that joins a
    space to the word behind it has the tokens that the passage would have. A word counts as right if each of its tokens
    is the most probable one at its place, which is what greedy decoding would write. The perplexity is
    exp(-(1/n) sum log p(word)): per word, however many tokens it has. No words are ruled out beforehand (Radford et al.
    2019 give figures with such a filter too).

    The data are a JSON Lines file with a passage in the field ``field``, or a text file with a passage in each line.

    Attributes:
        field: of a record, that holds the passage.
    """

    kind: ClassVar[str] = "lambada"
    about = About(
        also_called=("lambada_openai", "last_word", "word_prediction"),
        source="Paperno et al. 2016, section 3; Radford et al. 2019, section 3.3",
        equation=(r"\text{accuracy} = \frac{1}{n} \sum_{i=1}^{n} \prod_{t} \left[ w_t = \arg\max_v p(v \mid w_{<t}) "
                  r"\right], \qquad \text{perplexity} = \exp\left(-\frac{1}{n} \sum_{i=1}^{n} \log p(w_i \mid "
                  r"\text{passage}_i)\right)"),
        differs=(("mmlu", "any word may be the answer, where mmlu offers four letters."),
                 ("mbpp", "one word is predicted, and nothing is sampled.")),
        pictured=(("She opened the box,", ""), ("and out of it", ""), ("flew the", " bird")))

    field: str = Field(default="text", min_length=1)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(field="passage")]

    def measure(self, model: TextModel, data: Path, conditions: Conditions) -> BenchmarkResult:
        reading = FileReader(data)
        passages = self._passages(reading, data)[:conditions.limit]
        asked = [Question(passage[:passage.rindex(" ")], (passage[passage.rindex(" "):],)) for _, passage in passages]
        answers = [answer for answer, in model.answers(asked)]
        requests: list[dict[str, Any]] = [
            {"line": line, "prompt_sha256": digest_of(question.prompt), "word": question.completions[0][1:],
             "log_prob": answer.log_prob, "correct": answer.greedy, "tokens": answer.tokens, "cut": answer.cut}
            for (line, _), question, answer in zip(passages, asked, answers, strict=True)]
        protocol = BenchmarkProtocol(
            "{the passage without its last word}", "none", "right if each token of the last word is the most "
            "probable at its place; no words are ruled out", "none; the perplexity is per word, of the sum of its "
            "tokens' log-probabilities", tokenizer_line(model), context_line(model),
            sum(answer.cut > 0 for answer in answers), reading.material.describe(),
            f"{MEAN_ERROR}; of the perplexity: that of the mean log-probability times the perplexity, and a 95 % "
            "interval of the mean nats, exponentiated", conditions.limit)
        scores = [mean_score("accuracy", [float(answer.greedy) for answer in answers]),
                  perplexity_score("perplexity", [answer.log_prob for answer in answers])]
        return found(self, model, scores, protocol, asked[0].prompt, requests)

    def _passages(self, reading: FileReader, data: Path) -> list[tuple[int, str]]:
        """The passages with the numbers of their lines. Raises `DataError`: a line is no record, or its passage has
        fewer than two words; or there are none."""
        passages = list[tuple[int, str]]()
        is_records = content_suffix(data) in JSONL_SUFFIXES
        for number, line in enumerate(reading.text(data).split("\n"), 1):
            if not line.strip():
                continue
            where = f"{data}, line {number}"
            passage = (text_field(line, self.field, where) if is_records else line).strip()
            if " " not in passage:
                raise DataError("a passage without two words.", where=where, remedy="Correct or remove that line.")
            passages.append((number, passage))
        if not passages:
            raise DataError("the file has no passage.", where=str(data), remedy="Give a file that has some.")
        return passages


def text_field(line: str, field: str, where: str) -> str:
    """A field of a JSON record, which must be text. Raises `DataError`: the line is no record, or has no such text."""
    try:
        record = parse_json(line)
    except Unreadable as error:
        raise DataError(f"{error}.", where=where, remedy="Correct or remove that line.") from None
    if not isinstance(record, dict) or not isinstance(record.get(field), str):
        raise DataError(f"no text in a field {field!r}.", where=where,
                        remedy=f'Write lines such as {{"{field}": "..."}}, or name another field with field.')
    return str(record[field])
