"""LAMBADA: last words by plain calls of the model, and the figures by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import mean, stdev

import pytest

from benchmarks.asked import asked, by_hand, counted, transformer
from weft.benchmarks import Conditions
from weft.benchmarks.lambada import LambadaConfig
from weft.core.errors import DataError

PASSAGES = ["the cat met the dog", "the dog met the cat", "\"No,\" said the old  cat.", "a dog met ünder the dog",
            "he met the rat", "the cat met the cat"]


def written(folder: Path, name: str = "test.jsonl", field: str = "text") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps({field: passage}) + "\n" for passage in PASSAGES) + "\n", "utf-8")
    return file


@pytest.mark.parametrize("kind", ["transformer", "ngram"])
def test_a_word_is_scored_with_the_space_before_it(kind: str, tmp_path: Path) -> None:
    model = (transformer() if kind == "transformer" else counted("the cat met the dog and the dog")).eval()
    prompts = [passage[:passage.rindex(" ")].rstrip() for passage in PASSAGES]
    wanted = [by_hand(model, prompt, passage[len(prompt):]) for prompt, passage in zip(prompts, PASSAGES, strict=True)]
    found = LambadaConfig().measure(asked(model, batch_size=4), written(tmp_path), Conditions())
    assert [each["log_prob"] for each in found.requests] == pytest.approx([each for each, _ in wanted], rel=1e-9)
    assert [each["correct"] for each in found.requests] == [greedy for _, greedy in wanted]
    assert [each["word"] for each in found.requests] == ["dog", "cat", "cat.", "dog", "rat", "cat"]
    log_probs, right = [each for each, _ in wanted], [float(greedy) for _, greedy in wanted]
    accuracy, perplexity = found.scores
    assert accuracy.value == pytest.approx(mean(right)) and (kind != "ngram" or 0 < accuracy.value < 1)
    assert perplexity.value == pytest.approx(math.exp(-mean(log_probs)), rel=1e-9)
    assert perplexity.standard_error == pytest.approx(stdev(log_probs) / math.sqrt(6) * perplexity.value, rel=1e-9)
    assert accuracy.n == perplexity.n == 6 and found.example == "the cat met the"


def test_lines_of_text_and_another_field_and_batches_give_the_same(tmp_path: Path) -> None:
    model = transformer()
    plain = tmp_path / "test.txt"
    plain.write_text("\n".join(PASSAGES), "utf-8")
    renamed = written(tmp_path, "other.jsonl", "passage")
    found = [LambadaConfig(field=field).measure(asked(model, batch_size=size), file, Conditions())
             for field, size, file in (("text", 1, written(tmp_path)), ("text", 32, plain), ("passage", 3, renamed))]
    for other in found[1:]:
        assert [each["log_prob"] for each in other.requests] == pytest.approx(
            [each["log_prob"] for each in found[0].requests], rel=1e-11)
    assert len({each.protocol.data for each in found}) == 3


def test_a_word_without_probability_makes_the_perplexity_infinite(tmp_path: Path) -> None:
    model = counted("the cat met the dog", order=2, smoothing="maximum_likelihood")
    found = LambadaConfig().measure(asked(model), written(tmp_path), Conditions())
    perplexity = found.score("perplexity")
    assert perplexity.value == math.inf and perplexity.standard_error is None
    assert found.to_json()["scores"][1]["value"] == "Infinity"


def test_what_is_wrong_with_the_file_is_told_with_its_line(tmp_path: Path) -> None:
    for content, message in (('{"text": "a b"}\n{"text": ', r"test\.jsonl, line 2: not JSON: .*Correct or remove"),
                             ('{"text": "a b"}\n\n["a b"]', r"test\.jsonl, line 3: no text in a field 'text'"),
                             ('{"body": "a b"}', r"test\.jsonl, line 1: no text in a field 'text'\. Write lines such"),
                             ('{"text": " word "}', r"test\.jsonl, line 1: a passage without two words"),
                             ("\n", r"test\.jsonl: the file has no passage")):
        file = tmp_path / "test.jsonl"
        file.write_text(content, "utf-8")
        with pytest.raises(DataError, match=message):
            LambadaConfig().measure(asked(transformer()), file, Conditions())
