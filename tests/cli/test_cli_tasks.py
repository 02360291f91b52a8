"""From text to an answer by commands alone: an encoder trained on hidden tokens and fine-tuned to classify, and an
encoder-decoder trained on pairs; and what is said where a model of another kind is needed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from cli.conftest import Weft
from weft import api
from weft.core.model import Classifier, Encoder, EncoderInputs
from weft.core.span import Span
from weft.core.strict_json import dumps
from weft.tasks.answers import text_row

Refuse = Callable[..., str]

ANIMALS, FRUITS = ("fox", "cow", "hen", "dog"), ("fig", "pear", "plum", "date")
BOTH_WAYS = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
MLP = {"kind": "mlp", "d_ff": 48}
ENCODER: dict[str, Any] = {
    "kind": "encoder", "d_model": 24, "context": 16, "position": "learned", "norm": "layernorm",
    "blocks": [{"kind": "pre", "layers": [BOTH_WAYS, MLP]}]}
TRAINING = {"batch_size": 16, "optimizer": {"lr": 1e-2}, "compute": {"matmul": "default"}}


def sentence(words: tuple[str, ...], number: int) -> str:
    return " ".join(words[(7 * number // 4**place + place) % 4] for place in range(5))


def records(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def written(path: Path, run: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(run), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of an encoder on hidden tokens, in sentences that are all of animals or all of fruits."""
    from cli.conftest import call

    place = tmp_path_factory.mktemp("encoder")
    lines = [sentence(words, number) for number in range(64) for words in (ANIMALS, FRUITS)]
    (place / "lines.txt").write_text("\n".join(lines))
    run = {"model": {**ENCODER, "head": "masked_token"}, "task": {"kind": "masked", "rate": 0.3}, "tokenizer": "words",
           "data": {"path": str(place / "lines.txt"), "documents": "line", "packing": "documents", "validation": 0.3},
           "training": {**TRAINING, "steps": 100}}
    told = call("train", written(place / "masked.yaml", run), "--out", place / "run")
    assert told.code == 0, told.err
    return place


def test_an_encoder_learns_hidden_tokens_and_is_fine_tuned_to_classify(weft: Weft, encoder: Path,
                                                                       tmp_path: Path) -> None:
    (found,) = weft("eval", encoder / "run", "--json").json()
    # A hidden word is one of four for who sees its neighbours, ln 4 = 1.39, and one of eight, ln 8 = 2.08, for who
    # sees none.
    assert found["loss"] < 1.75 and found["unit"] == "hidden token" and found["accuracy"] > 0
    rows = [{"text": sentence(words, number), "label": name} for number in range(0, 64, 2)
            for words, name in ((ANIMALS, "animals"), (FRUITS, "fruits"))]
    run = {"start": str(encoder / "run"), "model": {"head": {"kind": "pooled", "pool": "mean"}}, "task": "classify",
           "data": {"path": str(records(tmp_path / "rows.jsonl", rows)), "validation": 0.3},
           "training": {**TRAINING, "steps": 30}}
    told = weft("train", written(tmp_path / "classify.yaml", run), "--out", tmp_path / "run")
    assert told.code == 0, told.err
    assert "fresh: head.map.bias, head.map.weight; left there: head.decoder.bias" in told.out
    (measured,) = weft("eval", tmp_path / "run", "--json").json()
    assert measured["accuracy"] == 1.0 and measured["unit"] == "example"
    loaded = api.load(tmp_path / "run")
    assert isinstance(loaded.model, Encoder) and isinstance(loaded.model.head, Classifier)
    assert loaded.tokenizer is not None and loaded.model.head.labels == ("animals", "fruits")
    ids = torch.tensor([loaded.tokenizer.encode("plum fig date fig"), loaded.tokenizer.encode("hen dog fox dog")])
    h = loaded.model.vectors(EncoderInputs(tokens=ids)).y
    assert loaded.model.head.scores(h, Span()).argmax(-1).tolist() == [1, 0]
    told = weft("score", tmp_path / "run", "--text", "plum fig date fig", "--text", "hen dog fox dog")
    assert re.fullmatch(r"row 0: fruits \(animals -\d+\.\d{3}, fruits -0\.\d{3}\)\n"
                        r"row 1: animals \(animals -0\.\d{3}, fruits -\d+\.\d{3}\)\n", told.out), told.out
    pair = weft("score", tmp_path / "run", "--text", "plum fig", "--second", "hen dog", "--json").json()["rows"]
    assert pair == json.loads(dumps(api.classify(loaded, [("plum fig", "hen dog")])))
    assert tuple(pair[0]["tokens"]) == text_row(loaded.tokenizer, "plum fig", "hen dog")[0]
    told = weft("score", tmp_path / "run", "--text", "plum", "--text", "fig", "--second", "hen")
    assert told.code == 2 and "--second: 1 second texts, and --text gives 2. Give one --second for each" in told.err
    told = weft("score", encoder / "run", "--text", "plum", "--second", "hen")
    assert told.code == 2 and "--second: second texts, for a model that was not trained to classify. Leave" in told.err


def test_an_encoder_scores_each_word_from_both_sides(weft: Weft, encoder: Path) -> None:
    rows = weft("score", encoder / "run", "--text", "fox cow hen dog", "--text", "fox cow fig dog",
                "--json").json()["rows"]
    assert [row["scored"] for row in rows] == [4, 4]
    assert rows[0]["log_probs"][0] is None and rows[0]["log_probs"][-1] is None
    # A fruit among animals, which no sentence has.
    assert rows[1]["log_probs"][3] < rows[0]["log_probs"][3] - 1


@pytest.mark.usefixtures("_near")
def test_an_encoder_is_planned_checked_and_converted(weft: Weft, encoder: Path, tmp_path: Path) -> None:
    plan = weft("plan", encoder / "run", "--json").json()
    assert plan["model"] == "encoder" and plan["states"] is None and plan["flops"]["full"] > 0
    assert {part["part"] for part in plan["parameters"]["parts"]} >= {"embeddings", "logits", "feed-forward"}
    checked = weft("check", encoder / "run", "--length", "16", "--json").json()
    assert checked["holds"] and {finding["law"] for finding in checked["twin"]["findings"]} >= {"head", "inputs"}
    made = weft("convert", encoder / "run", tmp_path / "copy", "--to", "weft")
    assert made.code == 0, made.err
    one, other = (api.load(path).model.state_dict() for path in (encoder / "run", tmp_path / "copy"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("command", "purpose"), [
    (("generate", "--prompt", "fox"), "generating text"),
    (("chat", "--template", "chatml", "--message", "hello"), "a conversation")])
def test_an_encoder_where_a_language_model_is_needed(refused: Refuse, encoder: Path, command: tuple[str, ...],
                                                     purpose: str) -> None:
    checkpoint = next((encoder / "run/checkpoints").iterdir())
    assert refused(command[0], checkpoint, *command[1:]) == (
        f"error: {checkpoint}: {purpose} needs a language model, and a model of kind 'encoder' predicts no next token. "
        "Give a decoder or another model of the next token.")


def test_a_format_of_language_models_takes_no_encoder(refused: Refuse, encoder: Path, tmp_path: Path) -> None:
    message = refused("convert", encoder / "run", tmp_path / "out.gguf", "--to", "gguf")
    assert "the format 'gguf' needs a language model, and a model of kind 'encoder' predicts no next token." in message
    message = refused("convert", encoder / "run", tmp_path / "hf", "--to", "hf")
    assert re.search(r"none of \d native classes can express this model; the nearest is '\w+', which does", message)
    assert not (tmp_path / "hf").exists() and not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(("changes", "message"), [
    (("task=mlm",), "task.kind: no task of kind 'mlm'. Did you mean 'masked'?"),
    (("task=seq2seq",), "task.kind: no task of kind 'seq2seq'. Did you mean 'sequence_to_sequence'?"),
    (("model.head=token_classification",), "model.head.kind: no head of kind 'token_classification'. Did you mean "
                                           "'per_token'?"),
    (("model.head=null",), "model.head: "), (("task=next_token",), "model: a model of kind 'encoder' is not a language "
                                                                   "model."),
    (("task=sequence_to_sequence",), "model: a model of kind 'encoder' predicts no next token. Give an "
                                     "encoder-decoder."),
    (("training.carry_state=true", "data.packing=stream"), "training.carry_state: rows that go on from "
     "batch to batch, which the task 'masked' does not have. Leave it out."),
    (("training.context=64",), "training.context: 64 tokens, and the model's positions end at 16."),
])
def test_tasks_and_models_that_do_not_fit_are_refused_before_the_corpus_is_read(
        refused: Refuse, encoder: Path, tmp_path: Path, changes: tuple[str, ...], message: str) -> None:
    told = refused("train", encoder / "masked.yaml", *changes, "tokenizer=bytes", f"data.path={tmp_path / 'missing'}",
                   "--out", tmp_path / "run")
    assert message in told and "missing" not in told.replace("missing.", "")
    assert not (tmp_path / "run").exists()


def test_eval_takes_no_windows_for_another_task(refused: Refuse, encoder: Path) -> None:
    assert "--context, --lengths, --stride, --documents, --by-document, --divide-by: windows of running text" in (
        refused("eval", encoder / "run", "--context", "8"))


def test_an_encoder_decoder_is_trained_on_pairs(weft: Weft, tmp_path: Path) -> None:
    """The target is the letter after the source's, as often as in the source: nothing but the source tells which."""
    rows = [{"source": letter * count, "target": chr(ord(letter) + 1) * count}
            for letter in "abcdefgh" for count in range(1, 6)]
    decoding = [{"kind": "attention", "n_heads": 2}, {"kind": "cross_attention", "n_heads": 2}, MLP]
    run = {"model": {"kind": "encoder_decoder", "d_model": 24, "context": 8, "position": "learned", "norm": "layernorm",
                     "blocks": [{"kind": "pre", "layers": decoding}],
                     "encoder": {key: value for key, value in ENCODER.items() if key != "context"}},
           "task": "sequence_to_sequence", "tokenizer": "characters",
           "data": {"path": str(records(tmp_path / "pairs.jsonl", rows)), "validation": 0.2},
           "training": {**TRAINING, "steps": 250}}
    told = weft("train", written(tmp_path / "pairs.yaml", run), "--out", tmp_path / "run")
    assert told.code == 0, told.err
    (found,) = weft("eval", tmp_path / "run", "--json").json()
    # Blind to the source a letter has 2.08 nats, and about three of four tokens are letters.
    assert found["loss"] < 0.8 and found["bits_per_byte"] < 1.5
    loaded = api.load(tmp_path / "run")
    assert loaded.tokenizer is not None and loaded.tokenizer.eos_id is not None
    source = [*loaded.tokenizer.encode("ccc"), loaded.tokenizer.eos_id]
    answer = api.generate(loaded, [{"source": source, "target": []}], max_new_tokens=1).rows[0]
    assert answer.text == "d"
    assert weft("plan", tmp_path / "run", "--json").json()["model"] == "encoder_decoder"
