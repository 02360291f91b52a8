"""The task of one value: its loss by hand, its pairs of texts and their types, its measures, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import weft
from tasks.task_runs import ENCODER, built, records_file, settings
from training.tiny_runs import LSTM
from weft.core.errors import ConfigError, DataError
from weft.core.model import Classifier, EncoderInputs
from weft.core.span import Span
from weft.data.labelled import LabelledTexts
from weft.data.settings import DataSettings
from weft.tasks.classify import Classify, RegressionConfig
from weft.tokenizers.config import ByteTokenizerConfig
from weft.training import parse_run, train

PAIRS = [{"a": f"{'ab' * (i % 4)}c", "b": f"d{'e' * (i % 3)}", "score": round(0.37 * i - 5, 2)} for i in range(40)]
FIELDS = {"text_field": "a", "second_field": "b", "value_field": "score"}
TYPED = {**ENCODER, "n_types": 2, "head": {"kind": "pooled", "n_values": 1}}


def task(**values: Any) -> Classify:
    return RegressionConfig(**FIELDS).create(settings(**{"context": 24, **values}))


def texts_of(folder: Path, rows: list[dict[str, Any]] = PAIRS) -> LabelledTexts:
    return task().material(DataSettings(path=str(records_file(folder, rows))), ByteTokenizerConfig()).train


def test_loss_and_gradient_are_the_squared_errors_of_each_pair_alone(tmp_path: Path) -> None:
    made, model = task(), built(TYPED, vocab_size=257)
    batch = made.batches(texts_of(tmp_path)).batch(1)
    found = made.loss(model, batch.columns, None)
    found.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    assert isinstance(model.head, Classifier)
    total = torch.zeros((), dtype=torch.float64)
    ids_of, _, labels, span = batch.columns
    for ids, count, value in zip(ids_of.numpy(), span.count.numpy(), labels[:, 0].tolist(), strict=True):
        first, second = bytes(int(each) if each < 256 else 0 for each in ids[1:count - 1]).split(bytes(1))
        row = [256, *first, 256, *second, 256]
        assert {"a": first.decode(), "b": second.decode(), "score": value} in PAIRS and row == ids[:count].tolist()
        types = torch.tensor([[0] * (len(first) + 2) + [1] * (len(second) + 1)])
        h = model.vectors(EncoderInputs(tokens=torch.tensor([row]), types=types)).y
        total = total + (model.head.scores(h, Span())[0, 0] - value) ** 2
    torch.testing.assert_close(found.nats, total.detach(), rtol=1e-10, atol=1e-10)
    assert batch.count.predictions == 4
    total.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-8, atol=1e-10)


def test_a_run_fills_in_its_head_and_is_measured_by_correlations(tmp_path: Path) -> None:
    run = parse_run({"task": {"kind": "regression", **FIELDS}, "model": {**ENCODER, "context": 24, "head": "pooled"},
                     "data": {"path": str(records_file(tmp_path, PAIRS)), "validation": 0.5},
                     "training": {"steps": 3, "batch_size": 4, "compute": {"matmul": "default"}}})
    assert run.dump()["model"]["head"]["n_values"] == 1
    made = train(run, tmp_path / "run")
    found = weft.measure(tmp_path / "run").named()
    assert found == pytest.approx(made.validation.named())
    held = run.made_task().held_out(run.data, made.tokenizer)
    rows = [(row["a"], row["b"]) for row in PAIRS]
    answers = {str(row["score"]): each.scores[0][0] for row, each in zip(PAIRS, weft.classify(tmp_path / "run", rows),
                                                                         strict=True)}
    true = held.labels[:, 0]
    predicted = np.array([answers[str(each)] for each in true])
    assert found["mean_squared_error"] == pytest.approx(((predicted - true) ** 2).mean(), rel=1e-5)
    assert found["pearson"] == pytest.approx(stats.pearsonr(true, predicted).statistic, abs=1e-4)
    assert found["spearman"] == pytest.approx(stats.spearmanr(true, predicted).statistic, abs=1e-3)
    assert {"pearson_standard_error", "spearman_standard_error"} < set(found)


@pytest.mark.parametrize(("model", "message"), [
    ({**LSTM, "vocab_size": 9}, "model.head: the model has no head. Give head: {kind: pooled} with n_values: 1."),
    ({**ENCODER, "vocab_size": 9, "head": {"kind": "pooled", "n_classes": 2}},
     "model.head: it gives 2 classes, while the task needs one value. Give head: {kind: pooled} with n_values: 1."),
])
def test_models_that_do_not_fit_are_refused_before_anything_is_read(tmp_path: Path, model: dict[str, Any],
                                                                    message: str) -> None:
    run = parse_run({"task": "regression", "model": model, "data": {"path": str(tmp_path / "missing.jsonl")}})
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(run, tmp_path / "run")


def test_records_without_a_value_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 41: the field 'score' holds 'high', not a number\. Correct or remove"):
        texts_of(tmp_path, [*PAIRS, {"a": "x", "b": "y", "score": "high"}])
    with pytest.raises(DataError, match=r"no field 'score'; .*with value_field"):
        texts_of(tmp_path, [*PAIRS, {"a": "x", "b": "y"}])
    with pytest.raises(ConfigError, match=r"value_field: 'a' is named twice\. Name another field"):
        parse_run({"task": {"kind": "regression", "text_field": "a", "value_field": "a"}, "model": TYPED})
