"""Predictions for the records of a file: what each kind of model gives them, in every format, also after a kill."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from weft import api
from weft.api import PredictionSettings, predicting, prediction_kinds
from weft.checkpoints import Loaded
from weft.core.errors import ConfigError, DataError, InputError, OccupiedError, UnsupportedError
from weft.data.record_files import read_file, write_file
from weft.tokenizers import ByteTokenizer

BOTH_WAYS = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
TEXTS = ["one", "a, \"quoted\" text\nof two lines", "é", "something that is longer than the context of this model", "x"]


def a_model(model: dict[str, Any], task: dict[str, Any] | None = None) -> Loaded:
    config = api.read_model({"vocab_size": 257, "d_model": 8, "context": 16, "position": "learned", **model})
    torch.manual_seed(0)
    return Loaded(config.build().eval(), ByteTokenizer(), config, None if task is None else {"task": task}, {},
                  Path("memory"))


def an_encoder(head: dict[str, Any] | None, task: dict[str, Any] | None = None) -> Loaded:
    return a_model({"kind": "encoder", "blocks": [{"kind": "pre", "layers": [BOTH_WAYS]}],
                    **({} if head is None else {"head": head})}, task)


def a_decoder() -> Loaded:
    return a_model({"kind": "decoder", "context": 64, "blocks": [{"kind": "pre", "layers": ["lstm"]}]})


CLASSES = {"kind": "pooled", "pool": "mean", "labels": ["bad", "good"]}
CLASSIFY = {"kind": "classify", "text_field": "review", "label_field": "stars"}


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.jsonl"
    path.write_text("".join(json.dumps({"id": number, "review": text}) + "\n" for number, text in enumerate(TEXTS)))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_classes_have_names_and_probabilities_beside_the_record(reviews: Path, tmp_path: Path) -> None:
    loaded, out = an_encoder(CLASSES, CLASSIFY), tmp_path / "out.jsonl"
    told = list[tuple[int, int]]()
    found = api.predict(loaded, reviews, out, PredictionSettings(batch_size=2), told=lambda *each: told.append(each))
    assert (found.kind, found.records, found.before, found.cut) == ("classes", 5, 0, 2)
    assert [(row["id"], row["review"]) for row in lines(out)] == list(enumerate(TEXTS))
    short = [place for place, text in enumerate(TEXTS) if len(text.encode()) < 14]
    for place, answer in zip(short, api.classify(loaded, [TEXTS[place] for place in short]), strict=True):
        row = lines(out)[place]
        assert row["prediction"] == answer.best[0] and list(row["probabilities"]) == ["bad", "good"]
        assert list(row["probabilities"].values()) == pytest.approx([math.exp(each) for each in answer.scores[0]])
    assert told[0] == (0, 5) and told[-1] == (5, 5) and all(one[0] <= other[0] for one, other in pairwise(told))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "reviews.jsonl"]


def test_every_format_is_read_and_written(reviews: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet  # type: ignore[import-untyped]

    loaded = an_encoder(CLASSES, CLASSIFY)
    whole = tmp_path / "whole.jsonl"
    api.predict(loaded, reviews, whole)
    before, names = reviews, ("prediction", "probabilities")
    for suffix in (".parquet", ".tsv", ".csv", ".jsonl"):
        plain, out = tmp_path / f"plain{suffix}", tmp_path / f"out{suffix}"
        write_file(plain, lambda path=before: ({name: value for name, value in row.items()  # type: ignore[misc]
                                                           if name not in names}
                                                          for _, row in read_file(path)))
        api.predict(loaded, plain, out)
        before = plain
        if suffix == ".parquet":
            rows = parquet.read_table(out).to_pylist()
            assert rows == lines(whole)
        elif suffix != ".jsonl":
            with out.open(newline="") as file:
                rows = list(csv.DictReader(file, delimiter="\t" if suffix == ".tsv" else ","))
            assert [row["review"] for row in rows] == TEXTS
            assert [float(row["probabilities.good"]) for row in rows] == [
                row["probabilities"]["good"] for row in lines(whole)]
        assert [row["prediction"] for _, row in read_file(out)] == [
            row["prediction"] for row in lines(whole)]


def test_fields_that_only_some_records_have_are_columns_of_a_table(tmp_path: Path) -> None:
    given = tmp_path / "given.jsonl"
    given.write_text('{"text": "a"}\n{"text": "b", "more": [1, 2]}\n')
    for suffix in ("csv", "parquet"):
        api.predict(an_encoder(CLASSES), given,
                    tmp_path / f"out.{suffix}")
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["more"] for row in rows] == ["", "[1, 2]"]
    assert [row.get("more") for _, row in read_file(tmp_path / "out.parquet")] == [None, [1, 2]]


def test_words_have_classes_and_spans(tmp_path: Path) -> None:
    labels = ["O", "B-PER", "I-PER"]
    loaded = an_encoder({"kind": "per_token", "labels": labels}, {"kind": "classify_tokens", "words_field": "tokens"})
    given, out = tmp_path / "given.jsonl", tmp_path / "out.jsonl"
    rows = [["Ada", "saw"], ["x"], ["of", "a", "b"]]
    given.write_text("".join(json.dumps({"tokens": row}) + "\n" for row in rows))
    assert api.predict(loaded, given, out).kind == "classes of words"
    answers = api.classify(loaded, [{"words": row} for row in rows])
    assert [row["prediction"] for row in lines(out)] == [list(answer.best) for answer in answers]
    spans = [span for row in lines(out) for span in row["spans"]]
    assert all(span["text"] == " ".join(rows[place][span["first"]:span["behind"]])
               for place, row in enumerate(lines(out)) for span in row["spans"])
    assert bool(spans) == any(label != "O" for answer in answers for label in answer.best)
    given.write_text(json.dumps({"tokens": ["long"] * 9}) + "\n")
    with pytest.raises(DataError, match=r"line 1: the words are \d+ tokens, and this model reads 16\. Divide"):
        api.predict(loaded, given, tmp_path / "other.jsonl")


def test_a_model_of_the_next_token_continues_lines(tmp_path: Path) -> None:
    loaded, given, out = a_decoder(), tmp_path / "given.txt", tmp_path / "out.jsonl"
    given.write_text("one\nanother\n\n")
    found = api.predict(loaded, given, out, PredictionSettings(max_new_tokens=5))
    wanted = api.generate(loaded, ["one", "another", ""], max_new_tokens=5, sampling=api.Sampling(temperature=0))
    assert found.kind == "continuations" and [row["prediction"] for row in lines(out)] == [
        row.text for row in wanted.rows]


def test_vectors_are_means_of_length_one(tmp_path: Path) -> None:
    given = tmp_path / "given.csv"
    given.write_text("text\none\nlonger text\n")
    for loaded in (an_encoder(None), an_encoder({"kind": "masked_token"}), a_decoder()):
        out = tmp_path / f"{loaded.config.kind}_{loaded.model.head is None}.jsonl"
        api.predict(loaded, given, out, PredictionSettings(vectors=True))
        for row in lines(out):
            assert len(row["vector"]) == 8 and math.hypot(*row["vector"]) == pytest.approx(1, abs=1e-6)
    with pytest.raises(UnsupportedError, match=r"which gives a text vectors alone\. Ask for vectors"):
        api.predict(an_encoder({"kind": "masked_token"}), given, tmp_path / "none.jsonl")


class KilledError(Exception):
    """Stands for the end of the process."""


def test_a_job_that_was_stopped_goes_on(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after any number of groups, with a line that is half written, the file is the same at the end."""
    loaded, whole = an_encoder(CLASSES, CLASSIFY), tmp_path / "whole.jsonl"
    monkeypatch.setattr(predicting, "SORTED", 1)
    settings = PredictionSettings(batch_size=1)
    api.predict(loaded, reviews, whole, settings)
    for stop in range(1, len(TEXTS)):
        out, partial = tmp_path / f"out{stop}.jsonl", tmp_path / f"out{stop}.partial"

        def end(done: int, total: int, stop: int = stop) -> None:
            if done > stop:
                raise KilledError

        with pytest.raises(KilledError):
            api.predict(loaded, reviews, out, settings, told=end)
        assert not out.exists()
        with (partial / predicting.ROWS).open("a") as file:
            file.write('{"prediction": "go')
        again = api.predict(loaded, reviews, tmp_path / f"out{stop}.csv" if stop == 3 else out, settings)
        assert (again.before, again.records) == (stop, 5) and not partial.exists()
        if stop != 3:
            assert out.read_bytes() == whole.read_bytes()


def test_another_job_does_not_go_on_in_that_folder(reviews: Path, tmp_path: Path) -> None:
    loaded, out = an_encoder(CLASSES, CLASSIFY), tmp_path / "out.jsonl"

    def end(done: int, total: int) -> None:
        if done:
            raise KilledError

    with pytest.raises(KilledError):
        api.predict(loaded, reviews, out, told=end)
    torch.manual_seed(1)
    other = replace(loaded, model=loaded.config.build().eval())
    with pytest.raises(ConfigError, match=r"out\.partial holds the predictions of an earlier call, which had another "
                                          r"model\. Repeat"):
        api.predict(other, reviews, out)
    with pytest.raises(ConfigError, match="another settings"):
        api.predict(loaded, reviews, out, PredictionSettings(vectors=True))
    reviews.write_text(reviews.read_text() + '{"review": "new"}\n')
    with pytest.raises(ConfigError, match="another file"):
        api.predict(loaded, reviews, out)
    (tmp_path / "mine.partial").mkdir()
    (tmp_path / "mine.partial" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds thesis\.txt, and no prediction"):
        api.predict(loaded, reviews, tmp_path / "mine.jsonl")
    assert (tmp_path / "mine.partial" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(("content", "told"), [
    ("", "the file has no records. Give a file that has some"),
    ('{"review": "a"}\n{"text": "b"}\n', r"line 2: no field 'review'; the fields are: 'text'"),
    ('{"review": "a"}\n{"review": 3}\n', "line 2: the field 'review' holds a int, not text"),
    ('{"review": "a"}\n[1]\n', "line 2: a list, while a record is an object"),
    ('{"review": "a", "prediction": 1}\n', "line 1: the record has a field 'prediction' already")])
def test_what_cannot_be_predicted_is_refused_before_anything_is(content: str, told: str, tmp_path: Path) -> None:
    given = tmp_path / "given.jsonl"
    given.write_text(content)
    with pytest.raises(DataError, match=told):
        api.predict(an_encoder(CLASSES, CLASSIFY), given, tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["given.jsonl"]


def test_settings_that_do_not_apply_are_refused(reviews: Path, tmp_path: Path) -> None:
    loaded, out = an_encoder(CLASSES, CLASSIFY), tmp_path / "out.jsonl"
    for wrong in (PredictionSettings(beams=2), PredictionSettings(max_new_tokens=2),
                  PredictionSettings(words_field="review")):
        with pytest.raises(InputError, match=r"does not apply to what this model predicts\. Leave it out"):
            api.predict(loaded, reviews, out, wrong)
    plain = tmp_path / "plain.txt"
    plain.write_text("a\n")
    with pytest.raises(InputError, match="second_field: a file of lines, each of which is one text, has no fields"):
        api.predict(loaded, plain, out, PredictionSettings(second_field="b"))
    with pytest.raises(InputError, match=r"no format is known by the name 'out\.xlsx'"):
        api.predict(loaded, reviews, tmp_path / "out.xlsx")
    out.write_text("mine")
    with pytest.raises(OccupiedError, match="nothing proves that Weft wrote it"):
        api.predict(loaded, reviews, out)


def test_every_setting_is_used_by_a_kind() -> None:
    """No setting is accepted and ignored: those of kinds are refused elsewhere, the others apply to all."""
    import inspect

    source = inspect.getsource(prediction_kinds._require_used)
    assert {name for name in PredictionSettings.__dataclass_fields__ if f'"{name}"' not in source} == {
        "vectors", "batch_size"}
