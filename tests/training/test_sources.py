"""Runs on mixtures of sources: what is read and said of each, exact resuming, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training.tiny_runs import LSTM, same_weights
from weft.core.errors import ConfigError, DataError, InputError, WeftError
from weft.tasks.mixed_material import mixed_held_out
from weft.tasks.text import span_of, text_rows
from weft.tokenizers import ByteTokenizer
from weft.training import Event, RunConfig, parse_run, train
from weft.training.files import read_plain
from weft.training.gradient import add_gradients
from weft.training.material import prepare, prepare_folder
from weft.training.sources import SourceRead, SourcesRead
from weft.training.trainer import Trainer

ENCODER: dict[str, Any] = {"kind": "encoder", "d_model": 8, "context": 8, "head": "masked_token", "blocks": [
    {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "mask": "bidirectional"}]}]}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("".join(f"line {i % 17}: {i % 7} and {i % 5}\n" for i in range(200)))
    for name in ("b1", "b2"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} has {i * 79 % 101}, not {i}\n" for i in range(40)))
    records = [{"ask": f"{i}?", "body": f"record {i} of {i * 31 % 100}"} for i in range(150)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


def sources(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"sources": {"a": {"path": str(folder / "a.txt"), "weight": 2},
                        "b": {"path": str(folder / "b*.txt"), "weight": 1},
                        "c": {"path": [str(folder / "c.jsonl")], "weight": 1, "text_field": "body"}}, **changes}


def run_of(folder: Path, data: dict[str, Any] | None = None, *, steps: int = 20, **more: Any) -> RunConfig:
    return parse_run({
        "model": LSTM, "data": sources(folder) if data is None else data, **more,
        "training": {"steps": steps, "batch_size": 4, "optimizer": {"lr": 1e-2}, "compute": {"matmul": "default"},
                     **more.pop("training", {})},
        "report": {"log_every": 5, "eval_every": 5, "eval_batches": 3, "keep": 9}})


def logged(out: Path) -> list[dict[str, Any]]:
    """The events without what depends on time."""
    clock = ("seconds", "seconds_left", "tokens_per_second", "mfu", "resident_bytes", "path")
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in event.items() if key not in clock} for event in events
            if event["event"] in ("progress", "validated", "sources")]


def test_a_run_reads_what_was_expected_and_says_the_losses(texts: Path) -> None:
    events: list[Event] = []
    result = train(run_of(texts), texts / "run", on_event=events.append)
    before, after = (event for event in events if isinstance(event, SourcesRead))
    assert [(each.name, each.expected, each.realised) for each in before.sources] == [
        ("a", 320, None), ("b", 160, None), ("c", 160, None)]
    assert [each.realised for each in after.sources] == [320, 160, 160]
    assert "a       50.00%" in before.line() and after.line().splitlines()[1].endswith("+0.00%")
    progress = [event for event in logged(texts / "run") if event["event"] == "progress"]
    assert all(list(event["sources"]) == ["a", "b", "c"] for event in progress)
    # Of a loss that is a mean over all predictions, the shares of the sources are those of the rows: two, one, one.
    for event in progress:
        found = event["sources"]
        assert (2 * found["a"] + found["b"] + found["c"]) / 4 == pytest.approx(event["loss"], rel=1e-6)
    assert next(event for event in events if event.name == "progress").line().count("by source a ") == 1
    own = result.validation.measures
    assert {"loss.a", "loss.b", "loss.c", "bits_per_byte.a"} <= set(own)
    assert result.validation.loss == pytest.approx((2 * own["loss.a"] + own["loss.b"] + own["loss.c"]) / 4)


def test_losses_by_source_are_those_of_their_rows(texts: Path) -> None:
    """Against log-probabilities row by row; and the sums of two ranks are those of one process."""
    asked = sources(texts)
    asked["sources"]["c"]["prompt_field"] = "ask"  # some tokens are read and do not count
    run = run_of(texts, asked, training={"dtype": "float64"})
    torch.manual_seed(0)
    trainer = Trainer(run, run.model.build(), prepare(run).train, steps=9, device="cpu")
    text = trainer.mixed
    assert text is not None
    model, batches = trainer.model.double(), [text.batch(step) for step in range(6)]
    sums, _ = add_gradients(trainer.task, model, [text_rows(batch) for batch in batches], None, device="cpu", sources=3)
    wanted = np.zeros((3, 3))
    for batch in batches:
        log_probs = model(torch.from_numpy(batch.inputs), None, span_of(batch)).y
        targets = torch.from_numpy(batch.targets)[..., None]
        nats = np.where(batch.scored, -log_probs.log_softmax(-1).gather(-1, targets)[..., 0].detach().numpy(), 0)
        for source in range(3):
            mine = batch.source == source
            wanted[:, source] += nats[mine].sum(), batch.scored[mine].sum(), 8 * mine.sum()
    assert sums.sources is not None and wanted[1, 2] < wanted[2, 2]
    np.testing.assert_allclose(sums.sources.nats, wanted[0], rtol=1e-12)
    assert [sums.sources.predictions.tolist(), sums.sources.tokens.tolist()] == wanted[1:].tolist()
    parts = [add_gradients(trainer.task, model, [trainer.batches.batch(step, rank=rank, world=2) for step in range(6)],
                           None, device="cpu", sources=3)[0].sources for rank in range(2)]
    np.testing.assert_allclose(sum(part.nats for part in parts if part is not None), wanted[0], rtol=1e-12)


def test_a_run_resumes_exactly_twice(texts: Path) -> None:
    run = run_of(texts, sources(texts, packing="documents"))
    whole = train(run, texts / "whole").model
    wanted = logged(texts / "whole")
    for last in (5, 10):
        for path in (texts / "whole/checkpoints").iterdir():
            if path.name.isdigit() and int(path.name) > last:
                shutil.rmtree(path)
        resumed = train(run, texts / "whole", resume=True).model
        assert same_weights(resumed, whole)
        found = [event for event in logged(texts / "whole") if event["event"] != "sources"]
        assert found == [event for event in wanted if event["event"] != "sources"]
        assert logged(texts / "whole")[-1] == wanted[-1] and wanted[-1]["sources"][0]["realised"]


def test_masked_tokens_are_read_from_a_mixture(texts: Path) -> None:
    run = parse_run({"model": ENCODER, "task": "masked", "data": sources(texts),
                     "training": {"steps": 4, "batch_size": 4}, "report": {"log_every": 1, "eval_batches": 3}})
    result = train(run, texts / "run")
    assert {"accuracy", "accuracy.a", "loss.c"} <= set(result.validation.measures)
    assert [each["realised"] for each in logged(texts / "run")[-1]["sources"]] == [64, 32, 32]


def test_prepared_sources_bring_their_tokenizer_and_their_held_out_text(texts: Path) -> None:
    plain = run_of(texts)
    made = {}
    for name, source in plain.data.mixed.items():
        given = {} if source.text_field is None else {"text_field": source.text_field}
        alone = parse_run({"model": LSTM, "data": {"path": source.path, **given}})
        made[name] = {"path": str(prepare_folder(alone.data, alone.tokenizer, texts / name).data.path),
                      "weight": source.weight}
    ours, theirs = prepare(plain), prepare(run_of(texts, {"sources": made}))
    for part in ("train", "validation"):
        mine, other = getattr(ours, part), getattr(theirs, part)
        assert mine.sources == other.sources
        np.testing.assert_array_equal(np.asarray(mine.tokens), np.asarray(other.tokens))
    again = mixed_held_out(plain.data, ByteTokenizer())
    np.testing.assert_array_equal(np.asarray(again.tokens), np.asarray(ours.validation.tokens))


def test_weights_of_a_published_mixture_are_taken_by_name(texts: Path) -> None:
    path = str(texts / "a.txt")
    data = {"mixture": "pile", "sources": {"Pile-CC": {"path": path}, "wikipedia_en": {"path": path},
                                           "mine": {"path": path, "weight": 0.5}}}
    mixed = run_of(texts, data).data.mixed
    assert [source.weight for source in mixed.values()] == [0.1811, 0.0153, 0.5]
    dolma = run_of(texts, {"mixture": "dolma", "sources": {"reddit": {"path": path}}}).data.mixed
    assert dolma["reddit"].weight == pytest.approx(89 / 3059, rel=1e-3)


def changed(folder: Path, **fields: Any) -> dict[str, Any]:
    found = sources(folder)
    found["sources"]["b"].update(fields)
    return found


REFUSED: dict[str, tuple[Any, type[WeftError], str]] = {
    "no weight": (lambda at: changed(at, weight=None), ConfigError,
                  r"data\.sources\.b\.weight: missing\. Give a number"),
    "a negative weight": (lambda at: changed(at, weight=-1), ConfigError, r"data\.sources\.b\.weight: .*greater"),
    "weights of zero": (lambda at: {"sources": {"a": {"path": str(at / "a.txt"), "weight": 0}}}, ConfigError,
                        r"data\.sources: all weights are zero\. Give one source"),
    "an unknown part": (lambda at: {"mixture": "pile", "sources": {"arxif": {"path": "x"}}}, ConfigError,
                        r"pile has no part 'arxif', and the source has no weight\. Did you mean .arxiv"),
    "an unknown mixture": (lambda at: {"mixture": "pil", "sources": {"a": {"path": "x"}}}, ConfigError,
                           r"data\.mixture: 'pil' is not a published mixture\. Did you mean .pile"),
    "a part twice": (lambda at: {"mixture": "pile", "sources": {"Pile-CC": {"path": "x"}, "pile_cc": {"path": "x"}}},
                     ConfigError, r"'Pile-CC' and 'pile_cc' are both the part pile_cc of pile"),
    "a path beside": (lambda at: sources(at, path="x"), ConfigError, r"data\.sources: beside a path\. Leave out"),
    "a text to hold out": (lambda at: sources(at, validation_path="x"), ConfigError,
                           r"data\.validation_path: 'x' beside sources"),
    "a mixture of nothing": (lambda at: {"mixture": "pile"}, ConfigError, r"data\.mixture: 'pile', and there are no"),
    "no place": (lambda at: {"sources": {"a": {"weight": 1}}}, ConfigError, r"neither a path nor a dataset\. Give one"),
    "no file": (lambda at: changed(at, path=str(at / "no*.txt")), DataError, r"no file matches the pattern"),
    "no text": (lambda at: changed(at, path=str(at / "empty.txt")), DataError, r"the file is empty"),
    "a field that is not there": (lambda at: changed(at, text_field="body"), DataError, r"text_field is 'body', while"),
    "caps below the run": (lambda at: {"sources": {"a": {"path": str(at / "b1.txt"), "weight": 1, "max_epochs": 0.1}}},
                           InputError, r"at most their epochs of the sources that have a weight are [\d.]+ tokens"),
    "caps that are refused": (lambda at: sources(at, when_capped="error") | {"sources": {
        **sources(at)["sources"], "b": {"path": str(at / "b1.txt"), "weight": 1, "max_epochs": 0.1}}}, ConfigError,
        r"data\.sources\.b\.max_epochs: 0\.1, and the run would read it [\d.]+ times"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_wrong_is_said_before_anything_is_trained(texts: Path, name: str) -> None:
    (texts / "empty.txt").write_text("")
    data, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message) as error:
        train(run_of(texts, data(texts)), texts / "run")
    if isinstance(error.value, DataError):
        assert str(error.value.where).startswith("data.sources.b")


def test_other_tasks_and_models_refuse_a_mixture_by_name(texts: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.sources: a mixture of running text, which the task 'mqar' does not"):
        run_of(texts, task="mqar")
    with pytest.raises(ConfigError, match=r"data\.sources: with training\.carry_state"):
        run_of(texts, training={"carry_state": True})
    ngram = parse_run({"model": {"kind": "ngram", "order": 2, "context": 8}, "data": sources(texts)})
    with pytest.raises(ConfigError, match=r"data\.sources: weights, while a model of kind 'ngram' counts every token"):
        train(ngram, texts / "ngram")
    with pytest.raises(ConfigError, match=r"data\.sources: a mixture, while one text is read here"):
        prepare_folder(run_of(texts).data, run_of(texts).tokenizer, texts / "prepared")


def test_prepared_sources_of_two_tokenizers_are_refused(texts: Path) -> None:
    made = {}
    for name, tokenizer in {"a": "bytes", "b": "characters"}.items():
        alone = parse_run({"model": LSTM, "data": {"path": str(texts / f"{name}{1 if name == 'b' else ''}.txt")},
                           "tokenizer": tokenizer})
        prepare_folder(alone.data, alone.tokenizer, texts / name)
        made[name] = {"path": str(texts / name), "weight": 1}
    with pytest.raises(DataError, match=r"another tokenizer \(characters.*than that of data\.sources\.a") as error:
        prepare(run_of(texts, {"sources": made}))
    assert error.value.where == "data.sources.b"
    made["a"]["max_bytes"] = 100
    with pytest.raises(ConfigError, match=r"data\.sources\.a\.max_bytes: 100, while .* holds prepared tokens"):
        prepare(run_of(texts, {"sources": {"a": made["a"]}}))


def test_two_sources_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("data:\n  sources:\n    a: {path: x, weight: 1}\n    a: {path: y, weight: 1}\n")
    with pytest.raises(ConfigError, match=r"'a'.*twice|twice.*'a'"):
        read_plain(tmp_path / "run.yaml")


def test_a_source_is_off_only_beyond_a_thousandth_and_two_rows() -> None:
    assert not SourceRead("a", 0.5, 100, 1000, 1016).off(8) and SourceRead("a", 0.5, 100, 1000, 1017).off(8)
    assert not SourceRead("a", 0.5, 100, 1e6, 1_000_999).off(8) and SourceRead("a", 0.5, 100, 1e6, 998_999).off(8)
