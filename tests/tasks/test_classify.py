"""The task of classes and values: labels, batches, losses by hand, measures, and what it refuses."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.task_runs import CLASSES, ENCODER, END, built, lines_file, records_file, run_of, settings
from training.test_resume import run_killed_at
from training.tiny_runs import LSTM, same_weights
from weft.checkpoints import load_checkpoint
from weft.core.errors import ConfigError, DataError
from weft.core.model import EncoderInputs
from weft.data.labelled import LabelledTexts
from weft.data.settings import DataSettings
from weft.tasks.classes import ClassCounts
from weft.tasks.classify import Classify, ClassifyConfig
from weft.tokenizers.config import ByteTokenizerConfig
from weft.training import parse_run, train

POOLED = {**ENCODER, "context": 48, "head": {"kind": "pooled", "pool": "mean"}}
PAIR = {"text_field": "a", "second_field": "b"}


def task(labels: tuple[str, ...] = ("no", "yes"), *, config: dict[str, Any] | None = None, **values: Any) -> Classify:
    return Classify(ClassifyConfig(**(config or {})), settings(**{"context": 48, "labels": labels, **values}))


def texts_of(folder: Path, rows: list[dict[str, Any]] = CLASSES, made: Classify | None = None) -> LabelledTexts:
    data = DataSettings(path=str(records_file(folder, rows)), validation=0.1)
    return (made or task()).material(data, ByteTokenizerConfig()).train


def words(row: np.ndarray, count: int) -> str:
    """The text between the ends of a row."""
    return bytes(row[1:count - 1].tolist()).decode()


def plain(batch: Any) -> dict[str, np.ndarray]:
    """The columns of a batch, and the tokens of each row, as arrays."""
    *columns, span = batch.columns
    found = [each.numpy() for each in (*columns, span.count)]
    return dict(zip(("ids", "types", "labels", "count"), found, strict=True))


def test_the_order_is_a_function_of_seed_and_step_and_processes_share_a_batch(tmp_path: Path) -> None:
    texts = texts_of(tmp_path)
    batches, count = task().batches(texts), len(texts.rows)
    for step in (0, 5, 40):
        again, whole = plain(task().batches(texts).batch(step)), plain(batches.batch(step))
        parts = [plain(batches.batch(step, rank=rank, world=4)) for rank in range(4)]
        for field, values in whole.items():
            np.testing.assert_array_equal(again[field], values)
            np.testing.assert_array_equal(np.concatenate([part[field] for part in parts]), values)
    rows = [row.tobytes() for step in range(count) for row in batches.order.of(step)]
    assert all(len(set(rows[first:first + count])) == count for first in range(0, 4 * count, count))
    fixed = task(reshuffle=False).batches(texts).order
    np.testing.assert_array_equal(fixed.of(0), fixed.of(count))
    assert (task(seed=1).batches(texts).order.of(0) != fixed.of(0)).any()


def test_labels_go_with_their_texts(tmp_path: Path) -> None:
    known = {row["text"]: row["label"] for row in CLASSES}
    batches = task().batches(texts_of(tmp_path))
    for step in range(10):
        batch = plain(batches.batch(step))
        assert not batch["types"].any()
        for row, count, label in zip(batch["ids"], batch["count"], batch["labels"], strict=True):
            assert known[words(row, int(count))] == ("no", "yes")[label]
            assert row[0] == row[count - 1] == END and not row[count:].any()


def test_two_texts_are_parted_and_the_longer_one_gives_way(tmp_path: Path) -> None:
    rows = [{"a": "x" * first, "b": "y" * second, "label": first % 2}
            for first, second in [(3, 4), (20, 2), (2, 20), (20, 20), (1, 1)] * 6]
    made = task(("0", "1"), config=PAIR, context=13)
    texts = texts_of(tmp_path, rows, made)
    seen = set()
    for step in range(12):
        batch = plain(made.batches(texts).batch(step))
        for row, kind, count in zip(batch["ids"], batch["types"], batch["count"], strict=True):
            first, second = (int((row == ord(letter)).sum()) for letter in "xy")
            assert row[:count].tolist() == [END, *[ord("x")] * first, END, *[ord("y")] * second, END]
            assert kind.tolist() == [0] * (first + 2) + [1] * (second + 1) + [0] * (len(row) - count)
            seen.add((first, second))
    assert seen == {(3, 4), (8, 2), (2, 8), (5, 5), (1, 1)}
    # Three texts in five are too long, and those fill the context.
    assert texts.cut == int((texts.rows.lengths == 13).sum()) > 10
    assert "are longer than the context of 13 tokens and were cut at the end" in str(made.batches(texts).notice)


@pytest.mark.parametrize("pool", ["first", "last", "mean"])
@pytest.mark.parametrize("values", [None, 2])
def test_loss_and_gradient_are_those_of_each_row_alone(tmp_path: Path, pool: str, values: int | None) -> None:
    rows = CLASSES if values is None else [{**row, "label": [len(row["text"]) / 9, 1]} for row in CLASSES]
    made = task(config={"n_values": values})
    head = {"kind": "pooled", "pool": pool, **({"labels": ("no", "yes")} if values is None else {"n_values": values})}
    model = built({**POOLED, "head": head}, vocab_size=257)
    rows_laid = made.batches(texts_of(tmp_path, rows, made)).batch(3)
    batch = plain(rows_laid)
    assert len(set(batch["count"].tolist())) > 1, "there is padding"
    found = made.loss(model, rows_laid.columns, None)
    found.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for row, count, label in zip(batch["ids"], batch["count"], batch["labels"], strict=True):
        h = model.vectors(EncoderInputs(tokens=torch.from_numpy(row[None, :count]))).y[0]
        pooled = {"first": h[0], "last": h[-1], "mean": h.mean(0)}[pool]
        z = model.head.map.weight @ pooled + model.head.map.bias
        if values is None:
            total = total + torch.logsumexp(z, 0) - z[int(label)]
        else:
            total = total + sum((z[i] - float(label[i])) ** 2 for i in range(2)) / 2
    torch.testing.assert_close(found.nats, total.detach(), rtol=1e-10, atol=1e-10)
    total.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-8, atol=1e-10)


def test_accuracy_and_macro_f1_by_hand() -> None:
    counts = ClassCounts(4)
    counts.add(np.array([0, 0, 1]), np.array([0, 1, 1]))
    counts.add(np.array([2, 0]), np.array([0, 0]))
    # Class 0: precision 2/3, recall 2/3; 1: precision 1/2, recall 1; 2: never predicted; 3: nowhere.
    assert counts.accuracy == pytest.approx(3 / 5)
    assert counts.macro_f1 == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)


def test_what_is_measured(tmp_path: Path) -> None:
    made, model = task(), built({**POOLED, "head": {"kind": "pooled", "labels": ("no", "yes")}}, vocab_size=257).eval()
    texts = texts_of(tmp_path)
    nats, right = 0.0, 0
    for row in range(len(texts.rows)):
        ids = texts.rows.padded(np.array([row]), int(texts.rows.lengths[row])).ids
        with torch.no_grad():
            z = model.head.map(model.vectors(EncoderInputs(tokens=torch.from_numpy(ids))).y[:, 0])[0]
        nats -= float(z.log_softmax(0)[texts.labels[row]])
        right += int(z.argmax()) == texts.labels[row]
    found = made.measure(model, texts)
    assert found.loss == pytest.approx(nats / len(texts.rows), rel=1e-9) and found.bits_per_byte is None
    assert found.measures["accuracy"] == pytest.approx(right / len(texts.rows))
    assert (found.tokens, found.unit, found.criterion, found.rising) == (len(texts.rows), "example", "accuracy", True)
    assert "2 of" in made.measure(model, texts, 2).protocol


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_table_gives_the_examples_of_the_same_records(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    rows = [{**row, "text": f'{row["text"]},\t"quoted"\nline'} for row in CLASSES]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["label", "text"], delimiter="," if suffix == ".csv" else "\t")
        writer.writeheader()
        writer.writerows(rows)
    config = ClassifyConfig()
    table = config.parts(DataSettings(path=str(path), validation_path=str(records_file(tmp_path, rows)))).parts
    assert [row.text for row in table["train"].documents] == [row.text for row in table["validation"].documents]
    assert config.labels(DataSettings(path=str(path))) == ("no", "yes")


def test_labels_are_found_recorded_and_travel_with_the_checkpoint(tmp_path: Path) -> None:
    run = run_of(tmp_path, "classify", POOLED)
    assert run.model.labels() == ("no", "yes")
    whole = train(run, tmp_path / "whole")
    assert load_checkpoint(tmp_path / "whole").model.config.labels() == ("no", "yes")
    assert set(whole.validation.measures) == {
        f"{name}{error}" for name in ("accuracy", "macro_f1", "f1", "matthews") for error in ("", "_standard_error")}
    run_killed_at(run, tmp_path / "killed", 5)
    resumed = train(run, tmp_path / "killed", resume=True)
    assert same_weights(resumed.model, whole.model) and resumed.validation == whole.validation
    mixed = records_file(tmp_path, [{"text": str(i), "label": (10, "9", True)[i % 3]} for i in range(60)])
    assert ClassifyConfig().labels(DataSettings(path=str(mixed))) == ("10", "9", "true")
    tens = records_file(tmp_path, [{"text": str(i), "label": i % 11} for i in range(200)])
    assert ClassifyConfig().labels(DataSettings(path=str(tens))) == tuple(map(str, range(11)))


def test_an_encoder_trained_on_hidden_tokens_is_fine_tuned_to_classify(tmp_path: Path) -> None:
    masked = run_of(tmp_path, "masked", {**POOLED, "head": "masked_token"}, path=lines_file(tmp_path))
    before = train(masked, tmp_path / "masked")
    run = parse_run({"start": str(tmp_path / "masked"), "task": "classify", "model": {"head": {"kind": "pooled"}},
                     "data": {"path": str(records_file(tmp_path, CLASSES))},
                     "training": {"steps": 1, "batch_size": 4, "optimizer": {"lr": 1e-12}}})
    assert run.model.labels() == ("no", "yes")
    after = train(run, tmp_path / "tuned")
    torch.testing.assert_close(after.model.state_dict()["embedding.tokens.weight"],
                               before.model.state_dict()["embedding.tokens.weight"])


@pytest.mark.parametrize(("model", "config", "message"), [
    ({**ENCODER, "vocab_size": 9}, {}, "model.head: the model has no head. Give head: {kind: pooled} with n_classes"),
    ({**ENCODER, "vocab_size": 9, "head": "masked_token"}, {}, "model.head: the model has a head that does not pool a "
                                                               "row. Give head: {kind: pooled}"),
    ({**ENCODER, "vocab_size": 9, "head": {"kind": "pooled", "n_classes": 2}}, {"n_values": 1},
     "model.head: it gives 2 classes, while the task needs one value. Give head: {kind: pooled} with "
     "n_values: 1."),
    ({**ENCODER, "vocab_size": 9, "head": {"kind": "pooled", "n_values": 2}}, {"n_values": 1}, "it gives 2 values"),
    ({**ENCODER, "vocab_size": 9, "head": {"kind": "pooled", "n_values": 2}}, {}, "task needs classes"),
    ({**LSTM, "vocab_size": 9}, {}, "model.head: the model has no head"),
])
def test_models_that_do_not_fit_are_refused_before_anything_is_read(tmp_path: Path, model: dict[str, Any],
                                                                    config: dict[str, Any], message: str) -> None:
    run = parse_run({"task": {"kind": "classify", **config}, "model": model,
                     "data": {"path": str(tmp_path / "missing.jsonl")}})
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(run, tmp_path / "run")


@pytest.mark.parametrize(("row", "values", "message"), [
    ({"text": "a", "label": None}, None, r"line 41: the label is missing: the field 'label' holds null\. Label that"),
    ({"text": "a", "label": " "}, None, r"line 41: the label is missing: the field 'label' holds no text"),
    ({"text": "a", "label": 0.5}, None, r"holds a float, while a class is a name or a whole.*set task\.n_values"),
    ({"text": "a", "lable": "x"}, None, r"line 41: no field 'label'; .*with label_field\. Did you mean 'lable'\?"),
    ({"text": None, "label": "x"}, None, r"line 41: the field 'text' holds null, not text.* with text_field"),
    ({"text": "a", "label": "much"}, 1, r"line 41: the field 'label' holds 'much', not a number\. Correct or remove"),
    ({"text": "a", "label": [1]}, 2, r"the field 'label' holds \[1\], not a list of 2 numbers"),
])
def test_records_without_a_proper_label_are_refused(tmp_path: Path, row: dict[str, Any], values: int | None,
                                                    message: str) -> None:
    good = [{**each, "label": [1.0] * values} if values else each for each in CLASSES]
    with pytest.raises(DataError, match=message):
        texts_of(tmp_path, [*good, row], task(config={"n_values": values}))


def test_a_label_that_training_has_not_is_refused_before_the_first_step(tmp_path: Path) -> None:
    path, other = records_file(tmp_path, CLASSES), records_file(tmp_path, [{"text": "a", "label": "maybe"}], "v.jsonl")
    run = parse_run({"task": "classify", "model": POOLED, "training": {"steps": 1},
                     "data": {"path": str(path), "validation_path": str(other)}})
    message = (r"v\.jsonl:1: the label 'maybe' is none of the model's 2 classes: no, yes\..* Correct the record, give "
               r"records of that class to train on, or name it in model\.head\.labels")
    with pytest.raises(DataError, match=message):
        train(run, tmp_path / "run")
    with pytest.raises(DataError, match=r"all records to train on have the label 'yes', so there is nothing to tell"):
        ClassifyConfig().labels(DataSettings(path=str(records_file(tmp_path, [CLASSES[1]] * 9))))
    with pytest.raises(ConfigError, match=r"label_field: 'text' is named twice\. Name another field"):
        parse_run({"task": {"kind": "classify", "label_field": "text"}, "model": {**ENCODER, "vocab_size": 9}})


@pytest.mark.parametrize(("content", "message"), [
    ("text,label\na,b,c\n", r"t\.csv, line 2: 3 values, while the first line names 2 fields\. Correct that row"),
    ('text,label\n"a,b\n', r"t\.csv, line 2: the table cannot be read \(.+\)\. Close every quote"),
    ("text,text\na,b\n", r"t\.csv: the first line of the table names 'text' twice\. Name every field once"),
    ("text,\na,b\n", r"the first line of the table leaves a field without a name"),
    ("", r"the first line of the table is missing"),
])
def test_broken_tables_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        ClassifyConfig().parts(DataSettings(path=str(tmp_path / "t.csv")))
    (tmp_path / "t.csv").write_bytes(b"text,label\n\xff,b\n")
    with pytest.raises(DataError, match=r"t\.csv: the file is not UTF-8: byte 0xff at offset 11\. Convert it to UTF-8"):
        ClassifyConfig().parts(DataSettings(path=str(tmp_path / "t.csv")))


def test_prepared_tokens_are_no_records(tmp_path: Path) -> None:
    (tmp_path / "train-00000.tokens.bin").write_bytes(b"")
    (tmp_path / "x.json").write_text(json.dumps({}))
    settings_ = DataSettings.model_construct(path=str(tmp_path), text_field="text", prompt_field=None, documents="file",
                                             max_bytes=None, validation=0.1, validation_path=None, test_path=None)
    with pytest.raises(DataError, match=r"the folder holds prepared tokens of running text, while this task reads"):
        ClassifyConfig().parts(settings_)
