"""The task of tagging: which token stands for a word, its loss by hand, its measures, learning, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from cli.conftest import call
from tasks.task_runs import ENCODER, END, built, lines_file, records_file, run_of, settings
from training.test_resume import run_killed_at
from training.tiny_runs import LSTM, same_weights
from weft.checkpoints import load_checkpoint
from weft.cli.score import without_words
from weft.core.errors import ConfigError, DataError, InputError
from weft.core.model import EncoderInputs
from weft.data.labelled_words import LabelledWords, first_tokens
from weft.data.settings import DataSettings
from weft.decoding import WordsRow
from weft.families.family import families
from weft.tasks.answers import text_row
from weft.tasks.classify_tokens import ClassifyTokens, ClassifyTokensConfig
from weft.tokenizers import Tokenizer
from weft.tokenizers.base import pieces_of
from weft.tokenizers.bpe import BPETokenizer
from weft.tokenizers.byte import ByteTokenizer
from weft.tokenizers.config import ByteTokenizerConfig
from weft.tokenizers.unigram import UnigramTokenizer
from weft.tokenizers.wordpiece import WordPieceTokenizer
from weft.tokenizers.words import WordTokenizer
from weft.training import parse_run, train

NAMES = ("B-LOC", "B-PER", "I-PER", "O")
PEOPLE, TOWNS = ("Ada Lovelace", "Zoë", "Grace Brewster Hopper"), ("Łódź", "Rome")
TAGGED = {**ENCODER, "context": 64, "head": {"kind": "per_token"}}


def sentence(number: int) -> dict[str, list[str]]:
    """Words and labels, whose number and lengths differ from one to the next; none is there twice."""
    person, town = PEOPLE[number % 3].split(), TOWNS[number % 2]
    words = [*person, "was", "in", town, *["today"] * (number % 4), str(number)]
    tail = ["O"] * (1 + number % 4)
    return {"words": words, "labels": ["B-PER", *["I-PER"] * (len(person) - 1), "O", "O", "B-LOC", *tail]}


ROWS = [sentence(number) for number in range(40)]


def task(*, config: dict[str, Any] | None = None, **values: Any) -> ClassifyTokens:
    return ClassifyTokensConfig(**(config or {})).create(settings(**{"context": 64, "labels": NAMES, **values}))


def texts_of(folder: Path, rows: list[Any] = ROWS, made: ClassifyTokens | None = None) -> LabelledWords:
    data = DataSettings(path=str(records_file(folder, rows)), validation=0.1)
    return (made or task()).material(data, ByteTokenizerConfig()).train


WORDS = ["Zoë", "isn't", "unbelievably", "unhappy", ",", "€5", "is", "n't", "a", "ĂĂ"]
"""Words of several tokens, of one, without letters, and with characters of several bytes."""


def trained(kind: str) -> Tokenizer:
    """A tokenizer that has some of the words whole, and cuts others into several tokens."""
    texts = ["unhappy Zoë is a is a 5 , believe able n't isn't", "un able happy is unhappy , a n't a € ĂĂ b"] * 9
    return {"bytes": ByteTokenizer, "words": lambda: WordTokenizer.train(texts), "bpe": lambda: BPETokenizer.train(
        texts, 290), "wordpiece": lambda: WordPieceTokenizer.train(texts, 60),
        "unigram": lambda: UnigramTokenizer.train(texts, 300)}[kind]()


@pytest.mark.parametrize("kind", ["bytes", "words", "bpe", "wordpiece", "unigram"])
def test_a_word_is_labelled_at_the_first_of_its_own_tokens(kind: str) -> None:
    """Each word is encoded by itself, behind the space before it, and its tokens are counted."""
    tokenizer = trained(kind)
    whole = tokenizer.measure(" ".join(WORDS))
    ids: list[int] = []
    expected = []
    for place, word in enumerate(WORDS):
        own = tokenizer.encode(f" {word}" if place and kind != "unigram" else word)
        # A space is part of the word's first token, or of none, or a token by itself, which is not the word's.
        alone = tokenizer.decode(own[:1]) == " " or own[0] == pieces_of(tokenizer).get("▁")
        expected.append(len(ids) + alone)
        ids += own
    assert whole.ids.tolist() == ids, "words are encoded by themselves"
    assert first_tokens(WORDS, whole.byte_lengths, "here").tolist() == expected
    assert kind == "words" or len(ids) > len(WORDS) + 4, "words of several tokens"


def test_a_space_that_is_a_token_of_its_own_is_not_the_word_s_first() -> None:
    """SentencePiece gives ▁ and é where it has no ▁é; the word begins at é."""
    assert first_tokens(["a", "é", "b"], np.array([1, 1, 2, 2]), "here").tolist() == [0, 2, 3]
    assert first_tokens(["a", "b"], np.array([0, 1, 2]), "here").tolist() == [1, 2]  # ▁ of no bytes before the text


@pytest.mark.parametrize(("words", "lengths", "message"), [
    (["a", "b", "c"], [3, 2], "the words 1 and 2, 'a' and 'b', share a token"),
    (["ab", "cd"], [1, 3, 1], "the words 1 and 2, 'ab' and 'cd', share a token"),
    (["a", "\ufeff", "c"], [1, 6], "the words 2 and 3, '\\ufeff' and 'c', share a token"),
    (["ab", "\ufeff"], [1, 5], "the words 1 and 2, 'ab' and '\\ufeff', share a token, or the tokenizer has none for "
                               "one of them. Remove the word that is no text and its label"),
    (["\ufeff"], [], "the tokenizer has no token for any word")])
def test_words_without_a_token_of_their_own_are_refused(words: list[str], lengths: list[int], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"here: {message}")):
        first_tokens(words, np.array(lengths, dtype=np.int32), "here")


def test_a_character_that_wordpiece_drops_is_refused_with_its_record(tmp_path: Path) -> None:
    tokenizer, path = trained("wordpiece"), records_file(tmp_path, [{"words": ["a", "\ufeff"], "labels": ["O", "O"]}])
    with pytest.raises(DataError, match=r"rows\.jsonl:1: the words 1 and 2, 'a' and '\\ufeff', share a token"):
        task().held_out(DataSettings(path=str(records_file(tmp_path, ROWS, "t.jsonl")), validation_path=str(path)),
                        tokenizer)


def plain(batch: Any) -> dict[str, np.ndarray]:
    """The columns of a batch, and the tokens of each row, as arrays."""
    *columns, span = batch.columns
    return dict(zip(("ids", "labels", "count"), [each.numpy() for each in (*columns, span.count)], strict=True))


def test_labels_go_with_the_first_bytes_of_their_words(tmp_path: Path) -> None:
    known = {" ".join(row["words"]): row for row in ROWS}
    texts = texts_of(tmp_path)
    batches = task().batches(texts)
    for step in range(10):
        batch = plain(batches.batch(step))
        parts = [plain(batches.batch(step, rank=rank, world=2)) for rank in range(2)]
        for field, values in batch.items():
            np.testing.assert_array_equal(np.concatenate([part[field] for part in parts]), values)
        for row, count, labels in zip(batch["ids"], batch["count"], batch["labels"], strict=True):
            assert row[0] == row[count - 1] == END and not row[count:].any()
            record = known[bytes(row[1:count - 1].tolist()).decode()]
            expected = np.full(len(row), -1)
            place = 1
            for word, label in zip(record["words"], record["labels"], strict=True):
                expected[place] = NAMES.index(label)
                place += len(word.encode()) + 1
            np.testing.assert_array_equal(labels, expected)
            assert text_row(ByteTokenizer(), " ".join(record["words"]))[0] == tuple(row[:count].tolist())
    predictions = batches.batch(9).count.predictions
    assert predictions == int((batch["labels"] >= 0).sum()) < int(batch["count"].sum())


def test_loss_and_gradient_are_those_of_each_word_alone(tmp_path: Path) -> None:
    made, model = task(), built({**TAGGED, "head": {"kind": "per_token", "labels": NAMES}}, vocab_size=257)
    laid = made.batches(texts_of(tmp_path)).batch(3)
    batch = plain(laid)
    assert len(set(batch["count"].tolist())) > 1, "there is padding"
    found = made.loss(model, laid.columns, None)
    found.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    total, words = torch.zeros((), dtype=torch.float64), 0
    known = {" ".join(row["words"]): row for row in ROWS}
    for row, count in zip(batch["ids"], batch["count"], strict=True):
        h = model.vectors(EncoderInputs(tokens=torch.from_numpy(row[None, :count]))).y[0]
        record, place = known[bytes(row[1:count - 1].tolist()).decode()], 1
        for word, label in zip(record["words"], record["labels"], strict=True):
            z = model.head.map.weight @ h[place] + model.head.map.bias
            total = total + torch.logsumexp(z, 0) - z[NAMES.index(label)]
            place, words = place + len(word.encode()) + 1, words + 1
    # In float64, sums of some hundred terms in another order.
    torch.testing.assert_close(found.nats, total.detach(), rtol=1e-10, atol=1e-10)
    assert laid.count == (4, words, 0, True, 0.0, None)
    total.backward()
    assert set(gradients) == {name for name, p in model.named_parameters() if p.grad is not None}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-8, atol=1e-10)


def test_labels_and_measures_travel_with_the_checkpoint(tmp_path: Path) -> None:
    run = run_of(tmp_path, "classify_tokens", TAGGED, path=records_file(tmp_path, ROWS), validation=0.4)
    assert run.model.labels() == NAMES
    whole = train(run, tmp_path / "whole")
    assert load_checkpoint(tmp_path / "whole").model.config.labels() == NAMES
    run_killed_at(run, tmp_path / "killed", 5)
    resumed = train(run, tmp_path / "killed", resume=True)
    assert same_weights(resumed.model, whole.model) and resumed.validation == whole.validation
    found = weft.measure(tmp_path / "whole")
    assert (found.criterion, found.rising, found.unit, found.bits_per_byte) == ("span_f1", True, "word", None)
    texts = run.made_task().held_out(run.data, whole.tokenizer)
    assert "2 of" in run.made_task().measure(whole.model, texts, 2).protocol
    held = texts.rows
    nats, right, words = 0.0, 0, 0
    for row in range(len(held)):
        text = bytes(held.padded(np.array([row]), int(held.lengths[row])).ids[0, 1:-1].tolist()).decode()
        record = next(row for row in ROWS if " ".join(row["words"]) == text)
        (answer,), place = weft.classify(tmp_path / "whole", text), 1
        for word, label in zip(record["words"], record["labels"], strict=True):
            right += answer.best[place] == label
            nats -= answer.scores[place][NAMES.index(label)]
            place, words = place + len(word.encode()) + 1, words + 1
    assert (found.tokens, found.measures["accuracy"]) == (words, pytest.approx(right / words))
    assert found.loss == pytest.approx(nats / words, rel=1e-5)  # float32, in batches of other widths
    told = call("score", tmp_path / "whole", "--text", "Zoë was").out
    assert re.search(r"row 0, token 0 '<\|endoftext\|>': .*\nrow 0, token 1 'Z': \S+ \(B-LOC -\d", told), told


def test_words_that_only_their_neighbours_tell_apart_are_learned(tmp_path: Path) -> None:
    """The names are the same words for people and for towns: a town follows "in". Whoever looks at the word alone is
    right for half of them."""
    names = ["lima", "petra", "paris", "sofia", "jordan", "chad"]
    rows = []
    for number in range(240):
        first, second = (names[(number * step + number // 6) % 6] for step in (1, 5))
        rows.append({"tokens": [first, "cruz", "lives", "in", second, "now"] if number % 2 else
                     ["in", second, "lives", first, "cruz"],
                     "tags": ["B-PER", "I-PER", "O", "O", "B-LOC", "O"] if number % 2 else
                     ["O", "B-LOC", "O", "B-PER", "I-PER"]})
    run = parse_run({"task": {"kind": "classify_tokens", "words_field": "tokens", "labels_field": "tags"},
                     "model": {**TAGGED, "d_model": 24, "context": 16}, "tokenizer": {"kind": "wordpiece",
                                                                                       "vocab_size": 60},
                     "data": {"path": str(records_file(tmp_path, rows)), "validation": 0.2},
                     "training": {"steps": 80, "batch_size": 16, "optimizer": {"lr": 1e-2},
                                  "compute": {"matmul": "default"}}, "report": {"eval_every": 80}})
    found = train(run, tmp_path / "run").validation
    assert found.measures["span_f1"] > 0.95 and found.measures["accuracy"] > 0.97 and found.loss < 0.2


def test_rows_of_words_get_the_classes_that_the_task_measures(tmp_path: Path) -> None:
    """Of words that the tokenizer cuts into several tokens, on the records themselves."""
    path = str(records_file(tmp_path, ROWS))
    run = parse_run({"task": "classify_tokens", "model": TAGGED, "tokenizer": {"kind": "wordpiece", "vocab_size": 72},
                     "data": {"path": path}, "training": {"steps": 6, "batch_size": 8, "optimizer": {"lr": 1e-2}}})
    train(run, tmp_path / "run")
    loaded = weft.load(tmp_path / "run")
    assert loaded.tokenizer is not None
    made = task(context=64)
    held = str(records_file(tmp_path, ROWS, "held.jsonl"))
    texts = made.held_out(DataSettings(path=path, validation_path=held), loaded.tokenizer)
    assert len(texts) > sum(len(row["words"]) + 2 for row in ROWS), "words of several tokens"
    found = weft.classify(loaded, [{"words": row["words"]} for row in ROWS])
    right = [best == label for row, answer in zip(ROWS, found, strict=True)
             for best, label in zip(answer.best, row["labels"], strict=True)]
    assert np.mean(right) == pytest.approx(made.measure(loaded.model, texts).measures["accuracy"])
    tokens, = weft.classify(loaded, [found[0].tokens])
    assert found[0].to_json()["words"] == ROWS[0]["words"] and "words" not in tokens.to_json()
    assert len(tokens.scores) == len(tokens.tokens) > len(found[0].scores)
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"words": ROWS[0]["words"]}, list(found[0].tokens)]), encoding="utf-8")
    lines = call("score", str(tmp_path / "run"), "--rows", str(file)).out.splitlines()
    assert [line.split(":")[0] for line in lines[:len(found[0].scores)]] == [
        f"row 0, word {place} {word!r}" for place, word in enumerate(ROWS[0]["words"])]
    assert [line.split(": ")[1].split()[0] for line in lines[:len(found[0].scores)]] == list(found[0].best)
    assert lines[len(found[0].scores)].startswith("row 1, token 0 ") and len(lines) == len(
        found[0].scores) + len(tokens.tokens)


@pytest.mark.parametrize(("row", "message"), [
    ({"words": []}, r"rows\[0\]\.words: there are no words"),
    ({"words": "Ada"}, r"rows\[0\]\.words: the str \"Ada\" where a list of words is expected"),
    ({"words": ["Ada", " "]}, r"rows\[0\]\.words\[1\]: the str \" \" where a word is expected"),
    ({"words": ["Ada"], "tokens": [1]}, r"rows\[0\]: the row has both 'words' and 'tokens'"),
])
def test_rows_of_words_that_are_none_are_refused(row: dict[str, Any], message: str) -> None:
    model = built({**TAGGED, "head": {"kind": "per_token", "labels": NAMES}}, vocab_size=257)
    with pytest.raises(InputError, match=message):
        weft.classify(model, [row])


def test_a_model_that_gives_words_no_classes_takes_none() -> None:
    with pytest.raises(InputError, match="--rows: rows of words, for a model that was not trained to classify words"):
        without_words([WordsRow(("Ada",))])


def test_a_head_for_whole_rows_takes_no_words() -> None:
    model = built({**ENCODER, "context": 64, "head": {"kind": "pooled", "labels": NAMES}}, vocab_size=257)
    with pytest.raises(InputError, match=r"rows\[0\]: a row of words, for a model that predicts once for each row"):
        weft.classify(model, [{"words": ["Ada"]}])


def test_an_encoder_trained_on_hidden_tokens_is_fine_tuned(tmp_path: Path) -> None:
    masked = run_of(tmp_path, "masked", {**TAGGED, "head": "masked_token"}, path=lines_file(tmp_path))
    before = train(masked, tmp_path / "masked")
    run = parse_run({"start": str(tmp_path / "masked"), "task": "classify_tokens",
                     "model": {"head": {"kind": "per_token"}}, "data": {"path": str(records_file(tmp_path, ROWS))},
                     "training": {"steps": 1, "batch_size": 4, "optimizer": {"lr": 1e-12}}})
    assert run.model.labels() == NAMES
    after = train(run, tmp_path / "tuned")
    torch.testing.assert_close(after.model.state_dict()["embedding.tokens.weight"],
                               before.model.state_dict()["embedding.tokens.weight"])


def test_labels_are_written_for_transformers_and_read_again(tmp_path: Path) -> None:
    names = {str(place): name for place, name in enumerate(NAMES)}
    config = families()["bert"].read({
        "vocab_size": 80, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 8,
        "max_position_embeddings": 64, "architectures": ["BertForTokenClassification"], "id2label": names})[0]
    model = config.dump()
    head = {key: value for key, value in model["head"].items() if key not in ("labels", "n_classes")}
    run = parse_run({"task": "classify_tokens", "model": {**model, "head": head},
                     "tokenizer": {"kind": "wordpiece", "vocab_size": 72},
                     "data": {"path": str(records_file(tmp_path, ROWS))}, "training": {"steps": 2, "batch_size": 4}})
    train(run, tmp_path / "run")
    weft.convert(tmp_path / "run", tmp_path / "hf", to="hf")
    written = json.loads((tmp_path / "hf/config.json").read_text())
    assert (written["architectures"], written["id2label"]) == (["BertForTokenClassification"], names)
    assert written["label2id"] == {name: place for place, name in enumerate(NAMES)}
    first, again = (weft.classify(tmp_path / each, "Ada was in Rome")[0] for each in ("run", "hf"))
    assert first.labels == again.labels == NAMES
    np.testing.assert_allclose(first.scores, again.scores, atol=1e-5)


@pytest.mark.parametrize("form", ["csv", "parquet", "lines"])
def test_other_files_give_the_same_words_and_labels(tmp_path: Path, form: str) -> None:
    held = str(records_file(tmp_path, ROWS))
    path = tmp_path / f"rows.{form}"
    if form == "csv":
        path.write_text("labels,words\n" + "".join(f"{' '.join(row['labels'])},{' '.join(row['words'])}\n"
                                                   for row in ROWS), encoding="utf-8")
    elif form == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(ROWS), path)
    else:
        path = tmp_path / "{}.txt"
        for field in ("words", "labels"):
            Path(str(path).format(field)).write_text("".join(f"{' '.join(row[field])}\n" for row in ROWS), "utf-8")
    parts = ClassifyTokensConfig().parts(DataSettings(path=str(path), validation_path=held)).parts
    assert [row.text for row in parts["train"].documents] == [row.text for row in parts["validation"].documents]


def test_a_text_longer_than_the_context_is_refused_or_cut(tmp_path: Path) -> None:
    """Of "abcd ef gh" the context has room for "abcd e", and so for the first tokens of two words."""
    rows = [{"words": ["abcd", "ef", "gh"], "labels": ["B-PER", "O", "I-PER"]}, {"words": ["a"], "labels": ["O"]}]
    data = DataSettings(path=str(records_file(tmp_path, rows)), validation_path=str(records_file(
        tmp_path, rows, "v.jsonl")))
    with pytest.raises(DataError, match=r"v\.jsonl:1: the text has 12 tokens with those around it, and the context is "
                                        r"8\. Raise training\.context, remove that record, or set task\.cut: true"):
        task(context=8).held_out(data, ByteTokenizer())
    made = task(context=8, config={"cut": True})
    texts = made.held_out(data, ByteTokenizer())
    assert (texts.cut, texts.left_out, len(texts)) == (1, 1, 8 + 3)
    assert texts.rows.padded(np.array([0]), 8).ids[0].tolist() == [END, *b"abcd e", END]
    assert texts.classes.padded(np.array([0]), 8).ids[0].tolist() == [0, 1 + NAMES.index("B-PER"), 0, 0, 0, 0,
                                                                     1 + NAMES.index("O"), 0]
    assert made.batches(texts).notice == ("1 of 2 texts are longer than the context of 8 tokens and were cut at the "
                                          "end, which leaves out 1 words")
    model = built({**TAGGED, "head": {"kind": "per_token", "labels": NAMES}}, vocab_size=257)
    found = made.measure(model, texts)
    assert found.tokens == 3 and "1 cut to the context, without 1 words" in found.protocol
    with pytest.raises(DataError, match=r"the context is 2, in which no word has room\. Raise .*, remove that record"):
        task(context=2, config={"cut": True}).held_out(data, ByteTokenizer())


@pytest.mark.parametrize(("row", "message"), [
    ({"words": ["a", "b"], "labels": ["O"]}, r"line 41: 2 words, and the field 'labels' has 1 labels\. Give each word"),
    ({"words": [], "labels": []}, r"line 41: the field 'words' has no words\. Fill it in, or remove that record"),
    ({"words": "  ", "labels": ""}, r"line 41: the field 'words' has no words"),
    ({"words": ["a", " "], "labels": ["O", "O"]}, r"line 41, word 2: the word of the field 'words' is empty\. Remove"),
    ({"words": ["a", 3], "labels": ["O", "O"]}, r"line 41, word 2: the field 'words' holds a int, not text"),
    ({"words": ["a", "b\ud800"], "labels": ["O", "O"]}, r"word 2: the character U\+D800 at position 1 of the field"),
    ({"words": None, "labels": []}, r"line 41: the field 'words' holds null, neither a list of words nor a text\. .* "
                                    r"with words_field"),
    ({"words": ["a"], "labels": {"a": "O"}}, r"line 41: the field 'labels' holds a dict, neither a list of labels nor"),
    ({"words": ["a", "b"], "labels": ["O", None]}, r"line 41, word 2: the label is missing: the field 'labels'"),
    ({"words": ["a"], "labels": [0.5]}, r"line 41, word 1: .* holds a float, while a class is a name or a whole "
                                        r"number\. Correct that record\.$"),
    ({"tokens": ["a"], "labels": ["O"]}, r"line 41: no field 'words'; .* one that holds the words with words_field"),
])
def test_records_without_a_label_for_each_word_are_refused(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        texts_of(tmp_path, [*ROWS, row])


def test_labels_that_training_has_not_or_has_alone_are_refused(tmp_path: Path) -> None:
    other = records_file(tmp_path, [{"words": ["a", "b"], "labels": ["O", "B-ORG"]}], "v.jsonl")
    run = run_of(tmp_path, "classify_tokens", TAGGED, path=records_file(tmp_path, ROWS), validation_path=str(other))
    with pytest.raises(DataError, match=r"v\.jsonl:1: the label 'B-ORG' is none of the model's 4 classes: B-LOC, "
                                        r"B-PER, I-PER, O\..* or name it in model\.head\.labels"):
        train(run, tmp_path / "run")
    alone = records_file(tmp_path, [{"words": ["a"], "labels": ["O"]}] * 9)
    with pytest.raises(DataError, match=r"all words to train on have the label 'O', so there is nothing to tell "
                                        r"apart\. Give words of at least two classes"):
        ClassifyTokensConfig().labels(DataSettings(path=str(alone)))
    numbers = records_file(tmp_path, [{"words": ["a", "b"], "labels": [i % 3 + 1, 10]} for i in range(60)])
    assert ClassifyTokensConfig().labels(DataSettings(path=str(numbers))) == ("1", "2", "3", "10")
    with pytest.raises(ConfigError, match=r"labels_field: 'words' is the field of the words\. Name another field"):
        parse_run({"task": {"kind": "classify_tokens", "labels_field": "words"}, "model": {**ENCODER, "vocab_size": 9}})


@pytest.mark.parametrize(("model", "message"), [
    ({**ENCODER, "vocab_size": 9}, "model.head: the model has no head. Give head: {kind: per_token} with n_classes"),
    ({**LSTM, "vocab_size": 9}, "model.head: the model has no head. Give head: {kind: per_token}"),
    ({**ENCODER, "vocab_size": 9, "head": "masked_token"}, "model.head: the model has a head that does not give "
                                                           "classes for each token. Give head: {kind: per_token}"),
    ({**ENCODER, "vocab_size": 9, "head": {"kind": "pooled", "n_classes": 2}}, "does not give classes for each token"),
    ({"kind": "image_encoder", "d_model": 8, "image": {"height": 4, "width": 4}, "patch": [2, 2],
      "blocks": ENCODER["blocks"]}, "model: a model of kind 'image_encoder' reads no tokens. Give a model of tokens."),
])
def test_models_that_do_not_fit_are_refused_before_anything_is_read(tmp_path: Path, model: dict[str, Any],
                                                                    message: str) -> None:
    run = parse_run({"task": "classify_tokens", "model": model, "data": {"path": str(tmp_path / "missing.jsonl")}})
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(run, tmp_path / "run")
