"""Log-probabilities of rows, by hand and against calls one row at a time."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from decoding.small_models import Bigram, decoder, kinds, reseeded
from seeing_ahead import seeing_ahead
from weft.core.errors import FailedError, InputError, OccupiedError, UnsupportedError
from weft.core.model import EncoderInputs, LanguageModel
from weft.core.span import Span
from weft.decoding import Row
from weft.evaluation import score, write_logits

KINDS = kinds()
TABLE = [[0.1, 0.7, 0.2], [0.5, 0.25, 0.25], [0.0, 0.9, 0.1]]


def test_a_table_by_hand() -> None:
    found = score(Bigram(TABLE), [[0, 1, 2], [2], [], [2, 0, 1]])
    first, second, third, last = found.rows
    assert first.log_probs == (None, pytest.approx(math.log(0.7)), pytest.approx(math.log(0.25)))
    assert (first.scored, first.total) == (2, pytest.approx(math.log(0.175)))
    assert first.perplexity == pytest.approx(0.175 ** -0.5)
    assert (second.log_probs, second.perplexity) == ((None,), None)
    assert (third.log_probs, third.scored, third.total) == ((), 0, 0)
    assert last.log_probs == (None, -math.inf, pytest.approx(math.log(0.7)))
    assert (last.total, last.perplexity) == (-math.inf, math.inf)


def test_a_start_token_gives_first_tokens_a_probability() -> None:
    found = score(Bigram(TABLE), [[1, 2], []], start=0, logits=True)
    assert found.rows[0].log_probs == (pytest.approx(math.log(0.7)), pytest.approx(math.log(0.25)))
    assert (found.rows[0].tokens, found.rows[1].log_probs) == ((1, 2), ())
    assert [values.shape for values in found.logits] == [(2, 3), (0, 3)]  # after each token of the row itself
    torch.testing.assert_close(found.logits[0].exp(), torch.tensor(TABLE)[1:], rtol=1e-6, atol=0)


def rows_for(model: LanguageModel) -> list[Row]:
    generator = reseeded(4)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(model.vocab_size, (length,), generator=generator).tolist())

    return [Row(ids(length), ids(length + 2) if model.takes_source else None) for length in (5, 12, 1, 9, 9)]


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_model_scores_as_its_logits_say(name: str) -> None:
    model = KINDS[name].eval()
    rows = rows_for(model)
    found = score(model, rows, logits=True, batch_size=3)
    for row, scored, logits in zip(rows, found.rows, found.logits, strict=True):
        source = None if row.source is None else model.encode(EncoderInputs(tokens=torch.tensor([row.source])))
        with torch.no_grad():
            y = model(torch.tensor([row.tokens]), None, Span(memory=source)).y[0]
        # Logits come in float32; log-probabilities in the model's float64.
        torch.testing.assert_close(logits, y.float(), rtol=1e-5, atol=1e-5)
        wanted = [float(y.log_softmax(-1)[place, token]) for place, token in enumerate(row.tokens[1:])]
        assert scored.log_probs[0] is None
        assert list(scored.log_probs[1:]) == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_batches_do_not_change_scores() -> None:
    rows = rows_for(KINDS["hybrid"])
    alone, together = (score(KINDS["hybrid"], rows, batch_size=size) for size in (1, 8))
    for one, other in zip(alone.rows, together.rows, strict=True):
        assert one.log_probs[1:] == pytest.approx(other.log_probs[1:], rel=1e-10)


def test_json_has_no_infinities() -> None:
    plain = score(Bigram(TABLE), [[2, 0]], start=1).to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain == {"start": 1, "rows": [
        {"tokens": [2, 0], "log_probs": [pytest.approx(math.log(0.25)), "-Infinity"], "scored": 2,
         "total": "-Infinity", "perplexity": "Infinity"}]}


def test_logits_are_written_whole(tmp_path: Path) -> None:
    found = score(KINDS["rope"], rows_for(KINDS["rope"]), logits=True)
    file = tmp_path / "out.safetensors"
    write_logits(file, found)
    read = load_file(file)
    assert sorted(read) == [f"row_{index}" for index in range(5)]
    assert all(torch.equal(read[f"row_{index}"], found.logits[index]) for index in range(5))
    assert read["row_1"].dtype == torch.float32 and read["row_1"].shape == (12, 11)
    assert list(tmp_path.iterdir()) == [file]
    before = file.read_bytes()
    with pytest.raises(OccupiedError, match=r"out\.safetensors: there is a file at this path already"):
        write_logits(file, found)
    assert file.read_bytes() == before


def test_logits_are_forced_to_the_disk_before_they_get_their_name(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda old, new: (order.append("replace"), replace(old, new))[1])
    write_logits(tmp_path / "out.safetensors", score(Bigram(TABLE), [[0]], logits=True))
    assert order == ["fsync", "replace", "fsync"]


def test_logits_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"logits: these rows were scored without logits\. Score with logits=True"):
        write_logits(tmp_path / "x", score(Bigram(TABLE), [[0]]))
    found = score(Bigram(TABLE), [[0]], logits=True)
    with pytest.raises(InputError, match=r"x: the file cannot be written .*Give a path in a folder that exists"):
        write_logits(tmp_path / "none" / "x", found)


def test_scoring_uses_no_dropout_and_leaves_training_mode_alone() -> None:
    model = decoder("lstm", embedding={"std": 1.0, "dropout": 0.5}).train()
    assert score(model, [[1, 2, 3]]) != score(model, [[3, 2, 1]])
    assert score(model, [[1, 2, 3]]).rows == score(model, [[1, 2, 3]]).rows and model.training


def test_what_cannot_be_scored() -> None:
    short = decoder("lstm", position={"kind": "learned", "max_length": 4})
    with pytest.raises(InputError, match=r"rows\[1\]: 5 tokens, and this model has positions for 4 tokens\. Give a"):
        score(short, [[1], [1] * 5])
    with pytest.raises(InputError, match=r"batch_size: 0 rows\. Give 1 or more"):
        score(short, [[1]], batch_size=0)
    with pytest.raises(InputError, match=r"rows\[0\]\[1\]: id 11 is outside the vocabulary of 11 ids"):
        score(short, [[1, 11]])
    with pytest.raises(UnsupportedError, match="scoring needs probabilities of the next token"):
        score(seeing_ahead(decoder({"kind": "attention", "n_heads": 2})), [[1]])
    with pytest.raises(FailedError, match=r"rows\[1\]: the model gives NaN\. Check the checkpoint"):
        score(Bigram([[0.5, 0.5], [math.nan, 0.5]]), [[0, 1], [1, 1]])
