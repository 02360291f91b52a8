"""Tasks on rows with answers: what is scored and measured, both kinds of model, resuming, and what is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.task_runs import BIDIRECTIONAL, settings
from training.test_resume import run_killed_at
from training.tiny_runs import same_weights
from weft import api
from weft.core.config import parse_part
from weft.core.errors import ConfigError, DataError, InputError
from weft.core.model import Model, parse_model
from weft.data.settings import DataSettings
from weft.tasks import rows as row_tasks
from weft.tasks.rows import RowTask, RowTaskConfig
from weft.training import RunConfig, parse_run, train

COPY = {"kind": "selective_copying", "length": 12, "data_tokens": 3, "symbols": 5, "held_out": 20}
RECALL = {"kind": "mqar", "length": 16, "pairs": 2, "symbols": 10, "held_out": 20}
LISTS = {"kind": "listops", "min_length": 3, "max_length": 20, "max_depth": 4, "max_args": 3, "held_out": 20}
PATHS = {"kind": "pathfinder", "size": 16, "contour": 2, "held_out": 6, "rows": 12}
CAUSAL: dict[str, Any] = {"kind": "decoder", "d_model": 8, "context": 32, "blocks": [
    {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"}, "lstm"]}]}
WHOLE: dict[str, Any] = {"kind": "encoder", "d_model": 8, "context": 256, "position": "sinusoidal", "head": "pooled",
                         "blocks": [{"kind": "pre", "layers": [BIDIRECTIONAL]}]}


def run_of(task: dict[str, Any], model: dict[str, Any], steps: int = 4, **more: Any) -> RunConfig:
    return parse_run({"task": task, "model": model, "report": {"eval_every": 2, "eval_batches": None, "keep": 9,
                                                               "checkpoint_every": 2},
                      "training": {"steps": steps, "batch_size": 4, "compute": {"matmul": "default"}}, **more})


def task_of(task: dict[str, Any], **more: Any) -> RowTask:
    config = parse_part(("task",), task)
    assert isinstance(config, RowTaskConfig)
    return RowTask(config, settings(**{"context": config.longest or 16, **more}))


def model_of(config: dict[str, Any], **fields: Any) -> Model:
    torch.manual_seed(0)
    return parse_model({**config, **fields}).build(None).double()


@pytest.mark.parametrize("task", [COPY, RECALL, LISTS], ids=lambda each: each["kind"])
def test_loss_and_measures_are_those_of_the_answers_alone(task: dict[str, Any]) -> None:
    """Row by row, from the logits at the places that are scored."""
    made = task_of(task, rows=8)
    # Larger embeddings, tied to the readout, would always predict the token that is read.
    model = model_of(CAUSAL, vocab_size=made.config.vocabulary(DataSettings()), readout="linear",
                     embedding={"std": 0.02})
    examples = made.held_out(DataSettings(), row_tasks.NoTokenizer())
    rows = examples.rows(np.arange(20))
    nats, right = [], []
    with torch.no_grad():
        for index, ids in enumerate(rows.ids):
            count = len(ids) if rows.count is None else int(rows.count[index])
            logits = model(torch.from_numpy(ids[None, :count])).y[0].log_softmax(-1)  # type: ignore[operator]
            for place, answer in zip(rows.places[index], rows.answers[index], strict=True):
                nats.append(-float(logits[place, answer]))
                right.append(int(logits[place].argmax()) == answer)
    found = made.measure(model, examples)
    assert found.loss == pytest.approx(np.mean(nats)) and found.tokens == len(nats) and found.unit == "answer"
    by_row = np.array(right, dtype=float).reshape(20, -1)
    assert found.measures["accuracy"] == pytest.approx(by_row.mean()) and 0 < by_row.mean() < 1
    assert found.measures["accuracy_standard_error"] == pytest.approx(by_row.mean(1).std(ddof=1) / math.sqrt(20))
    if by_row.shape[1] > 1:
        assert found.measures["whole_rows"] == pytest.approx(by_row.all(1).mean())
    scored = made.loss(model, row_tasks.row_columns(rows), None)
    assert float(scored.nats) == pytest.approx(sum(nats))
    batch = made.batches(examples).batch(0)
    assert batch.count == (8, batch.columns.answers.numel(), 0, True, 0.0, None)


def test_batches_are_a_function_of_the_step_and_ranks_share_them() -> None:
    for task in (RECALL, LISTS):
        made = task_of(task, rows=4, seed=3)
        batches = made.batches(made.config.read(DataSettings(), "train", ()))
        whole, halves = batches.batch(9).columns, [batches.batch(9, rank=rank, world=2).columns for rank in (0, 1)]
        assert torch.equal(whole.ids, torch.cat([each.ids for each in halves]))
        assert torch.equal(whole.answers, torch.cat([each.answers for each in halves]))
        assert not torch.equal(batches.batch(10).columns.answers, whole.answers)


def test_few_rows_come_once_an_epoch() -> None:
    made = task_of({"kind": "induction_heads", "length": 9, "symbols": 200, "rows": 12}, rows=4, seed=1)
    examples = made.config.read(DataSettings(), "train", ())
    batches = made.batches(examples)
    epoch = np.concatenate([batches.batch(step).columns.ids.numpy() for step in range(3)])
    assert {row.tobytes() for row in epoch} == {row.tobytes() for row in examples.rows(np.arange(12)).ids}
    assert len(examples) == 12 * 9 and batches.tokens_per_batch == 36


def test_chance_is_that_of_the_rule_or_counted() -> None:
    model = model_of(CAUSAL, vocab_size=30)
    assert task_of(COPY).config.chance == 1 / 3 and task_of(RECALL).config.chance == 1 / 5
    made = task_of(LISTS)
    examples = made.held_out(DataSettings(), row_tasks.NoTokenizer())
    counted = np.bincount(examples.rows(np.arange(20)).answers[:, 0]).max() / 20
    assert made.measure(model, examples).measures["chance"] == counted


def test_a_long_row_is_read_in_pieces_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in (RECALL, LISTS):
        made, model = task_of(task), model_of(CAUSAL, vocab_size=30, embedding={"std": 1.0})
        examples = made.held_out(DataSettings(), row_tasks.NoTokenizer())
        whole = made.measure(model, examples)
        with monkeypatch.context() as patch:
            patch.setattr(row_tasks, "PIECE", 5)
            pieces = made.measure(model, examples)
        assert pieces.loss == pytest.approx(whole.loss, abs=1e-12) and pieces.measures == whole.measures


@pytest.mark.parametrize(("task", "model"), [(RECALL, CAUSAL), (LISTS, WHOLE), (PATHS, WHOLE)],
                         ids=["mqar", "listops", "pathfinder"])
def test_a_killed_run_resumes_to_the_same_bytes(task: dict[str, Any], model: dict[str, Any], tmp_path: Path) -> None:
    run = run_of(task, model)
    whole = train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "killed", 3)
    resumed = train(run, tmp_path / "killed", resume=True)
    assert same_weights(resumed.model, whole.model) and resumed.validation == whole.validation
    assert api.measure(tmp_path / "whole").named() == whole.validation.named()
    assert run.model.vocab_size == {"mqar": 10, "listops": 15, "pathfinder": 258}[task["kind"]]


def test_a_checkpoint_is_measured_at_other_lengths_and_on_other_tasks(tmp_path: Path) -> None:
    train(run_of(RECALL, CAUSAL), tmp_path / "run")
    longer = api.measure(tmp_path / "run", length=64)
    assert "rows of 64" in longer.protocol and longer.tokens == 2 * 20
    assert api.measure(tmp_path / "run", task={"pairs": 3}).tokens == 3 * 20
    other = api.measure(tmp_path / "run", task={"kind": "induction_heads", "symbols": 10, "held_out": 5}, length=40)
    assert other.tokens == 5 and other.measures["chance"] == 1 / 9
    assert api.measure(tmp_path / "run", part="test").protocol.count("test") == 1
    with pytest.raises(InputError, match=r"other data for rows that the task makes itself. Leave it out"):
        api.measure(tmp_path / "run", tmp_path, length=64)


def test_images_are_read_pixel_by_pixel(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 2 * 2, dtype=np.uint8).reshape(2, 3, 2, 2).repeat(10, 0)
    np.savez(tmp_path / "images.npz", images=pixels, labels=np.array(["b", "a"]).repeat(10))
    data = DataSettings(path=str(tmp_path / "images.npz"), validation=0.2)
    made = task_of({"kind": "pixels"})
    examples = made.config.read(data, "train", ())
    rows = examples.rows(np.arange(16))
    first = rows.ids[rows.answers[:, 0] == 257][0]
    assert first.tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11] and (rows.places == 11).all()
    mixed = task_of({"kind": "pixels", "permuted": True}).config.read(data, "train", ()).rows(np.arange(16))
    order = [first.tolist().index(each) for each in mixed.ids[mixed.answers[:, 0] == 257][0]]
    assert sorted(order) == list(range(12)) and order != list(range(12))
    np.testing.assert_array_equal(mixed.ids, rows.ids[:, order])
    run = run_of({"kind": "pixels"}, {**CAUSAL, "context": 12}, steps=2, data=data.model_dump())
    assert run.model.vocab_size == 258
    assert train(run, tmp_path / "run").validation.measures["chance"] >= 0.5
    np.savez(tmp_path / "floats.npz", images=pixels.astype(np.float32), labels=np.array(["b", "a"]).repeat(10))
    with pytest.raises(DataError, match=r"pixels of the type float32, which are no ids. Give images whose pixels are"):
        made.config.read(DataSettings(path=str(tmp_path / "floats.npz")), "train", ())


def test_an_n_gram_counts_the_rows_up_to_each_answer(tmp_path: Path) -> None:
    """A trigram knows the last two tokens, so what follows a trigger at once, and no key further back."""
    model = {"kind": "ngram", "order": 3, "context": 16}
    found = train(run_of({**RECALL, "rows": 400, "held_out": 200}, model), tmp_path / "run").validation
    assert found.measures["accuracy"] < 0.4  # 1 in 5 values at random
    with pytest.raises(ConfigError, match=r"task.rows: 549,755,813,888 rows of 16 tokens, and a model of kind 'ngram' "
                                          r"counts them all. Give rows of 8,388,608 tokens at most."):
        train(run_of(RECALL, model), tmp_path / "endless")


@pytest.mark.parametrize(("fields", "message"), [
    ({"kind": "selective_copying", "length": 5, "data_tokens": 3}, "length: 5 tokens, while 3 data tokens and as many "
     "markers take 6. Give length: 6 or more, or fewer tokens."),
    ({**RECALL, "length": 15}, "length: 15 tokens, while rows consist of pairs of tokens. Give 16."),
    ({**RECALL, "pairs": 5, "symbols": 40}, "length: 16 tokens, while 5 pairs and a slot of two tokens for each query "
     "take 20. Give length: 20 or more, or fewer pairs."),
    ({**RECALL, "symbols": 5}, "symbols: 5 ids, of which 1 are keys, for 2 different keys. Give symbols: 6 or more"),
    ({**LISTS, "max_length": 4 + 1, "min_length": 4}, "max_length: 5, while rows are shorter than that and longer than "
     "4. Give 6 or more."),
    ({"kind": "listops", "max_depth": 3}, "min_length: 500, while of expressions of depth 3 with up to 10 arguments a "
     "share of"),
    ({"kind": "pathfinder", "size": 16}, "contour: two paths of 14 dashes, with the room around them, take 280 pixels, "
     "more than half of the 196 within the border of 16 x 16. Lower contour, dash or gap, or raise size."),
])
def test_sizes_that_the_rule_cannot_satisfy_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_run({"task": fields, "model": CAUSAL})


@pytest.mark.parametrize(("model", "task", "message"), [
    ({**CAUSAL, "vocab_size": 9}, RECALL, "model.vocab_size: 9, while the rows of 'mqar' have 10 ids. Leave it out, "
     "and it is filled in."),
    ({**CAUSAL, "context": 8}, RECALL, "training.context: 8 tokens, while a row of 'mqar' has up to 16. Give "
     "model.context: 16."),
    ({**CAUSAL, "context": 8, "position": "learned"}, RECALL, "task: rows of 16 tokens, and the model's positions end "
     "at 8. Give shorter rows, or a model whose positions reach as far."),
    ({**WHOLE, "head": None}, RECALL, "model: a model of kind 'encoder' predicts no answers here. Give a language "
     "model."),
    ({**WHOLE, "head": None}, LISTS, "Give a language model, or one of tokens with head: {kind: pooled}."),
    ({**WHOLE, "head": {"kind": "pooled", "n_classes": 3}}, LISTS, "model.head: 3 classes, while rows of 'listops' "
     "have 10. Leave n_classes and labels out"),
])
def test_models_that_do_not_fit_are_refused_before_a_row_is_made(model: dict[str, Any], task: dict[str, Any],
                                                                 message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(run_of(task, model), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_of_text_are_refused(tmp_path: Path) -> None:
    for section, message in (({"data": {"path": "a.txt"}}, "data.path: 'a.txt', while the task 'mqar' makes its rows "
                              "by itself. Leave it out; task.rows and task.held_out say how many."),
                             ({"tokenizer": {"kind": "characters"}}, "tokenizer: characters, while the rows of 'mqar' "
                              "are ids. Leave it out."),
                             ({"training": {"steps": 2, "carry_state": True}}, "training.carry_state: rows that go on "
                              "from batch to batch, which the task 'mqar' does not have.")):
        with pytest.raises(ConfigError, match=re.escape(message)):
            train(parse_run({"task": RECALL, "model": {**CAUSAL, "vocab_size": 40}, **section}), tmp_path / "run")


def test_the_command_measures_by_length_and_refuses_options_of_text(tmp_path: Path,
                                                                    capsys: pytest.CaptureFixture[str]) -> None:
    from typer.testing import CliRunner

    from weft.cli.main import app

    train(run_of(RECALL, CAUSAL), tmp_path / "run")

    def said(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["eval", str(tmp_path / "run"), *words])
        return done.exit_code, " ".join(done.output.split())

    code, text = said("--lengths", "16,64")
    assert code == 0 and "length 16: loss" in text and "length 64: loss" in text and "chance 0.2000" in text
    assert "(40 answers)" in text and "accuracy_standard_error" in text
    code, text = said("--task", "{kind: selective_copying, data_tokens: 2, symbols: 8}", "--lengths", "9", "--json")
    assert code == 0 and json.loads(text)[0]["length"] == 9 and json.loads(text)[0]["predictions"] == 2000
    for words, message in ((("--lengths", "15"), "length: 15 tokens, while rows consist of pairs of tokens. Give 16."),
                           (("--lengths", "16", "--stride", "3"), "an option of text, while the task makes its rows"),
                           (("--task", "next_token"), "task: 'next_token' is no task on rows with answers. Give"),
                           (("--task", "3"), "'3' is neither a kind of task nor its fields. Give a kind such as mqar"),
                           (("--task", "{kind: pathfinder}", "--lengths", "1000"), "a picture has the square of a "
                            "size. Give 961 or 1,024."),
                           (("--task", "mqar"), "")):
        code, text = said(*words)
        assert (code == 0) == (not message) and message in text
