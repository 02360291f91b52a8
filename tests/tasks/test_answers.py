"""What heads say of given rows, against the model run by hand, and what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.task_runs import ENCODER, built, records_file, settings
from training.tiny_runs import LSTM
from weft.core.errors import InputError, UnsupportedError
from weft.core.model import EncoderInputs
from weft.data.settings import DataSettings
from weft.tasks.answers import Answer, classify, score_hidden, text_row
from weft.tasks.classify import Classify, ClassifyConfig
from weft.tokenizers import ByteTokenizer
from weft.tokenizers.config import ByteTokenizerConfig

END, MASK, V = 256, 257, 258
ROWS = [[END, 5, 9, 9, END], [END, 7, END], [END, *range(12), END]]


def model(head: Any, **fields: Any) -> Any:
    return built(ENCODER, vocab_size=V, head=head, **fields).eval()


def alone(found: Any, row: list[int]) -> torch.Tensor:
    types = torch.zeros(1, len(row), dtype=torch.int64) if found.config.n_types else None
    with torch.no_grad():
        return found.vectors(EncoderInputs(tokens=torch.tensor([row]), types=types)).y  # type: ignore[no-any-return]


@pytest.mark.parametrize("n_types", [0, 2])
def test_a_row_s_classes_are_those_of_the_row_alone(n_types: int) -> None:
    found = model({"kind": "pooled", "pool": "mean", "labels": ["a", "b", "c"]}, n_types=n_types)
    answers = classify(found.train(), ROWS)
    assert found.training, "the mode is put back"
    found.eval()
    for answer, row in zip(answers, ROWS, strict=True):
        x = alone(found, row).mean(1)
        wanted = torch.log_softmax(x @ found.head.map.weight.T + found.head.map.bias, -1)[0]
        assert answer.scores == (pytest.approx(wanted.tolist(), rel=1e-9),)
        assert answer.best == ("abc"[int(wanted.argmax())],) and answer.pooled and answer.tokens == tuple(row)


def test_each_token_has_classes_and_padding_has_none() -> None:
    found = model({"kind": "per_token", "n_classes": 2})
    for answer, row in zip(classify(found, ROWS), ROWS, strict=True):
        wanted = torch.log_softmax(alone(found, row) @ found.head.map.weight.T + found.head.map.bias, -1)[0]
        assert len(answer.scores) == len(row) and not answer.pooled
        for scores, each in zip(answer.scores, wanted, strict=True):
            assert scores == pytest.approx(each.tolist(), rel=1e-9)
        assert set(answer.best) <= {"0", "1"}


def test_values_are_given_as_they_are() -> None:
    found = model({"kind": "pooled", "n_values": 2})
    (answer,) = classify(found, ROWS[:1])
    wanted = alone(found, ROWS[0])[:, 0] @ found.head.map.weight.T + found.head.map.bias
    assert answer == Answer(tuple(ROWS[0]), (), (pytest.approx(wanted[0].tolist(), rel=1e-9),), True)
    assert (answer.best, answer.to_json()["labels"]) == ((), [])


def test_every_token_is_predicted_from_a_row_in_which_it_alone_is_hidden() -> None:
    found = model("masked_token")
    scored = score_hidden(found, ROWS, ByteTokenizer())
    for row, result in zip(ROWS, scored.rows, strict=True):
        assert result.tokens == tuple(row)
        for place, token in enumerate(row):
            if token == END:
                assert result.log_probs[place] is None
                continue
            hidden = [*row[:place], MASK, *row[place + 1:]]
            wanted = found.head.logits(alone(found, hidden)).log_softmax(-1)[0, place, token].detach()
            assert result.log_probs[place] == pytest.approx(float(wanted), rel=1e-9)


def test_a_text_stands_between_what_opens_and_what_closes_a_document() -> None:
    assert text_row(ByteTokenizer(), "ab") == ((END, 97, 98, END), 0)


@pytest.mark.parametrize("n_types", [0, 2])
def test_a_pair_of_texts_is_read_as_in_training(tmp_path: Path, n_types: int) -> None:
    """Rows and types are those of the training examples, whose loss gives the log-probability of each class."""
    rows = [{"a": "ab" * (i % 3), "b": f"c{i}", "label": "xy"[i % 2]} for i in range(20)]
    task = Classify(ClassifyConfig(text_field="a", second_field="b"), settings(rows=4, labels=("x", "y")))
    data = DataSettings(path=str(records_file(tmp_path, rows)), validation=0.1)
    found = model({"kind": "pooled", "pool": "mean", "labels": ["x", "y"]}, n_types=n_types)
    texts = task.material(data, ByteTokenizerConfig()).train
    batch = task.batches(texts).batch(0)
    ids_of, types, labels, span = batch.columns
    assert span.count is not None
    pairs = itertools.product(("", "ab", "abab"), (f"c{i}" for i in range(20)))
    known = {row[0]: row for row in (text_row(ByteTokenizer(), *pair) for pair in pairs)}
    chosen = [known[tuple(ids[:count].tolist())] for ids, count in zip(ids_of, span.count.tolist(), strict=True)]
    assert [second for _, second in chosen] == types.sum(1).tolist()
    answers = classify(found, [tokens for tokens, _ in chosen], [second for _, second in chosen])
    with torch.no_grad():
        loss = task.loss(found, batch.columns, None).nats
    total = sum(answer.scores[0][int(label)] for answer, label in zip(answers, labels, strict=True))
    assert -total == pytest.approx(float(loss), rel=1e-9)
    single = classify(found, [tokens for tokens, _ in chosen])
    assert (single == answers) == (n_types == 0), "types matter where the model reads them"


@pytest.mark.parametrize(("row", "message"), [
    ([], r"rows\[1\]: no tokens\. Give at least one"), ([300], r"rows\[1\]: an id outside the vocabulary, 0 \.\. 257"),
    ([1] * 17, r"rows\[1\]: 17 tokens, and this model has positions for 16 tokens\. Give a shorter row")])
def test_rows_that_a_model_cannot_take_are_refused(row: list[int], message: str) -> None:
    for call in (lambda: classify(model({"kind": "pooled", "n_classes": 2}), [[1], row]),
                 lambda: score_hidden(model("masked_token"), [[1], row], ByteTokenizer())):
        with pytest.raises(InputError, match=message):
            call()


def test_a_model_without_the_head_for_it_is_refused() -> None:
    without = r"model\.head: a model of kind 'encoder' without a head that predicts classes or values"
    with pytest.raises(UnsupportedError, match=without):
        classify(model("masked_token"), ROWS)
    with pytest.raises(UnsupportedError, match=r"model\.head: a model of kind 'encoder' without a head that predicts "
                                               r"tokens"):
        score_hidden(model(None), ROWS, ByteTokenizer())
    with pytest.raises(UnsupportedError, match=r"a model of kind 'decoder' without a head that predicts classes"):
        classify(built(LSTM, vocab_size=V), ROWS)
    with pytest.raises(InputError, match=r"tokenizer: there is no tokenizer, whose mask token replaces a hidden"):
        score_hidden(model("masked_token"), ROWS, None)
