"""Per-token flags: from records with a prompt to what a loss and an evaluation count, through files or not."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decoding.small_models import decoder
from training.tiny_runs import LSTM
from weft.core.errors import ConfigError, DataError
from weft.data import (
    Corpus,
    Document,
    EvaluationWindows,
    PackedBatches,
    SequentialBatches,
    ShuffledBatches,
    TokenStream,
    encode_corpus,
    read_text,
)
from weft.data.inspection import inspect_data
from weft.data.layout import EncodedPart, RowLayout
from weft.data.prepared import open_prepared
from weft.data.settings import DataSettings
from weft.disk.manifest import MANIFEST_FILE, sha256_of
from weft.evaluation import evaluate
from weft.tasks.token_streams import read_texts
from weft.tokenizers import BPETokenizer, ByteTokenizer
from weft.tokenizers.config import ByteTokenizerConfig
from weft.training import parse_run, train
from weft.training.material import prepare_folder

PAIRS = [("2+2=", "4"), ("", "all of it"), ("é?", "è!"), ("only asked", "")]
END = 256


def pairs_file(folder: Path, pairs: list[tuple[str, str]], name: str = "pairs.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps({"question": prompt, "answer": answer}) + "\n" for prompt, answer in pairs))
    return path


def corpus_of(folder: Path, pairs: list[tuple[str, str]] = PAIRS) -> Corpus:
    return read_text(pairs_file(folder, pairs), text_field="answer", prompt_field="question")


def by_hand(pairs: list[tuple[str, str]]) -> tuple[list[int], list[bool]]:
    """Bytes of each prompt and answer, the end after each, and which of them count."""
    tokens, scored = [END], [True]
    for prompt, answer in pairs:
        tokens += [*prompt.encode(), *answer.encode(), END]
        scored += [False] * len(prompt.encode()) + [True] * (len(answer.encode()) + 1)
    return tokens, scored


def test_a_prompt_is_read_and_only_the_answer_and_its_end_count(tmp_path: Path) -> None:
    stream, (tokens, scored) = encode_corpus(corpus_of(tmp_path), ByteTokenizer()), by_hand(PAIRS)
    assert stream.tokens.tolist() == tokens
    assert stream.flags is not None and stream.flags.dtype == np.uint8
    assert stream.flags.tolist() == list(map(int, scored))
    assert stream.scored(np.arange(len(stream))).tolist() == scored
    assert encode_corpus(Corpus("plain", (Document("a", "b"),)), ByteTokenizer()).flags is None


def test_prompt_and_answer_are_encoded_apart(tmp_path: Path) -> None:
    tokenizer = BPETokenizer.train(["4 apples are 4 apples"] * 50, 266)
    (document,) = corpus_of(tmp_path, [("4 app", "les are")]).documents
    stream = encode_corpus(Corpus("c", (document,)), tokenizer)
    assert stream.tokens.tolist()[1:-1] == [*tokenizer.encode("4 app"), *tokenizer.encode("les are")]
    assert len(tokenizer.encode("4 apples are")) < len(stream) - 2, "a token of the whole text would cross the border"


def test_turns_of_a_conversation_count_by_their_borders() -> None:
    document = Document("talk", "hi" + "yes" + "why" + "so", (0, 2, 5, 8))
    assert [(str(part.utf8, "utf-8"), part.scored) for part in document.segments()] == [
        ("hi", False), ("yes", True), ("why", False), ("so", True)]
    stream = encode_corpus(Corpus("c", (document, Document("cut", "hiyes", (0,)), Document("b", "x"))), ByteTokenizer())
    flags = [1, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1]
    assert stream.flags is not None and stream.flags.tolist() == flags, "what ends in a prompt has no end that counts"
    assert document.until(4).borders == (0, 2) and document.until(4).text == "hiye"
    assert Corpus("c", (document,)).sha256 != Corpus("c", (Document("talk", document.text),)).sha256


def test_the_flag_of_a_closing_token_is_its_documents() -> None:
    parts = [EncodedPart(np.array([5]), np.array([1]), closes=False, scored=False),
             EncodedPart(np.array([6]), np.array([1]), opens=False, end_scored=True),
             EncodedPart(np.array([7]), np.array([1]), scored=False, end_scored=False)]
    (row,) = RowLayout(opening=1, closing=2, final=None).rows([parts])
    assert row.ids.tolist() == [1, 5, 6, 2, 1, 7, 2]
    assert row.scored.tolist() == [True, False, True, True, True, False, False]
    (row,) = RowLayout(opening=None, closing=None, final=None).rows([parts])
    assert (row.ids.tolist(), row.begins.tolist()) == ([5, 6, 7], [True, False, True])


@pytest.mark.parametrize("kind", [ShuffledBatches, SequentialBatches, PackedBatches])
def test_batches_carry_what_counts(tmp_path: Path, kind: Any) -> None:
    pairs = [("ask " * (i % 4), f"answer {i}") for i in range(30)]
    stream = encode_corpus(corpus_of(tmp_path, pairs), ByteTokenizer())
    scored = np.array(by_hand(pairs)[1])
    places = TokenStream(np.arange(len(stream)), stream.begins, stream.byte_lengths, True, len(stream), "", "", "")
    counted = kind(stream, rows=2, length=16, seed=3)
    located = kind(places, rows=2, length=16, seed=3)
    for step in range(12):
        batch, where = counted.batch(step), located.batch(step)
        inside = where.scored
        np.testing.assert_array_equal(batch.scored[inside], scored[where.targets[inside]])
        assert not batch.scored[~inside].any()
        wanted = where.targets[inside & batch.scored]
        assert batch.scored_tokens == len(wanted) and batch.scored_bytes == stream.byte_lengths[wanted].sum()


def test_an_evaluation_counts_neither_nats_nor_bytes_of_what_is_only_read(tmp_path: Path) -> None:
    pairs = [("ask " * (i % 3), f"say {i}") for i in range(9)]
    stream = encode_corpus(corpus_of(tmp_path, pairs), ByteTokenizer())
    model = decoder({"kind": "attention", "n_heads": 2, "position": "rope"}, vocab_size=257).double().eval()
    nats, tokens, size = 0.0, 0, 0
    for prompt, answer in pairs:
        row = torch.tensor([[END, *prompt.encode(), *answer.encode(), END]])
        with torch.no_grad():
            log_probs = model(row).y.log_softmax(-1)[0, :-1].gather(-1, row[0, 1:, None])[:, 0]
        nats -= float(log_probs[len(prompt.encode()):].sum())
        tokens += len(answer.encode()) + 1
        size += len(answer.encode())
    for found in (evaluate(model, stream, mode="documents"), evaluate(model, stream, context=len(stream))):
        assert (found.tokens, found.bytes) == (tokens, size)
        assert found.nats == pytest.approx(nats, rel=1e-9)
        assert found.bits_per_byte == pytest.approx(nats / math.log(2) / size)
        assert "tokens flagged as not scored are read, and count neither nats nor bytes" in found.protocol.describe()
    windows = EvaluationWindows(stream, context=7, stride=3, rows=2)
    assert sum(batch.scored_tokens for batch in windows) == tokens
    narrow = evaluate(model, stream, context=7, stride=3)
    assert (narrow.tokens, narrow.bytes) == (tokens, size)


def prepared(folder: Path, pairs: list[tuple[str, str]]) -> Path:
    settings = DataSettings(path=str(pairs_file(folder, pairs)), text_field="answer", prompt_field="question")
    return prepare_folder(settings, ByteTokenizerConfig(), folder / "d", shard_tokens=60).data.path


def test_shards_keep_the_flags_and_need_none_where_all_count(tmp_path: Path) -> None:
    pairs = [("" if i < 40 else "ask", f"answer number {i}") for i in range(80)]
    folder = prepared(tmp_path, pairs)
    data = open_prepared(folder, check="full")
    parts = read_texts(DataSettings(path=str(tmp_path / "pairs.jsonl"), text_field="answer",
                                    prompt_field="question")).parts
    shards = data.part("train").shards
    assert {shard.flags is None for shard in shards} == {True, False}
    for name in ("train", "validation"):
        direct, mapped = encode_corpus(parts[name], ByteTokenizer()), data.stream(name)
        for field in ("tokens", "begins", "byte_lengths", "flags"):
            np.testing.assert_array_equal(np.asarray(getattr(mapped, field)), getattr(direct, field))
    assert direct.flags is not None and data.part("validation").scored_tokens == int(direct.flags.sum())
    facts = {part.name: part for part in inspect_data(data).parts}
    assert facts["validation"].scored_tokens == int(direct.flags.sum())
    assert facts["validation"].scored_bytes == int(direct.byte_lengths[direct.flags == 1].sum())
    first = next(shard for shard in shards if shard.flags is not None).flags
    assert first is not None
    (folder / first.name).write_bytes(bytes(first.bytes))
    with pytest.raises(DataError, match=r"train-\d{5}\.flags\.bin has changed: its SHA-256 differs"):
        open_prepared(folder)


def test_flags_that_the_manifest_does_not_bear_out_are_refused(tmp_path: Path) -> None:
    folder = prepared(tmp_path, [("ask", f"answer number {i}") for i in range(20)])
    for value, message in ((0, r"train: [\d,]+ tokens are flagged as scored, while the manifest has"),
                           (2, r"some tokens have flags that are unknown to this version of Weft\. Upgrade")):
        content = json.loads((folder / MANIFEST_FILE).read_text())
        entry = content["parts"]["train"]["shards"][0]["flags"]
        (folder / entry["name"]).write_bytes(bytes([value]) * entry["bytes"])
        entry["sha256"] = entry["sample_sha256"] = sha256_of(folder / entry["name"])
        content.pop("digest")
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        (folder / MANIFEST_FILE).write_text(json.dumps({**content, "digest": digest}))
        with pytest.raises(DataError, match=message):
            inspect_data(open_prepared(folder, check="full"))


def test_records_with_a_prompt_stay_whole_however_few_they_are(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [("ask", f"answer {i}") for i in range(8)])
    train_part, held = corpus.split(0.3)
    whole = [document.text for document in corpus.documents]
    assert {document.text for part in (train_part, held) for document in part.documents} == set(whole)
    assert len(train_part.documents) + len(held.documents) == 8
    with pytest.raises(DataError, match=r"pairs\.jsonl: a limit of 3 bytes does not hold one whole record\. Raise max"):
        corpus.limited(3)
    with pytest.raises(DataError, match=r"one record cannot be divided, so none can be held out\. Give more text, or"):
        corpus_of(tmp_path, [("ask", "answer")]).split(0.3)


def test_what_cannot_be_flagged_is_refused(tmp_path: Path) -> None:
    path = pairs_file(tmp_path, PAIRS)
    with pytest.raises(DataError, match=r"line 1: no field 'ask'; the fields are: 'question', 'answer'\. Name the one "
                                        r"that holds the prompt with prompt_field"):
        read_text(path, text_field="answer", prompt_field="ask")
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(DataError, match=r"prompt_field is 'question', while no file here holds records\. Leave it out"):
        read_text(tmp_path / "a.txt", prompt_field="question")
    with pytest.raises(DataError, match=r"no token of the corpus is scored: all of its text is prompt\. Give records"):
        encode_corpus(Corpus("c", (Document("a", "x", (0,)),)), BPETokenizer(
            BPETokenizer.train(["ab"], 257).files()["tokenizer.json"]))
    for values, message in (({"prompt_field": "q"}, r"prompt_field: 'q', while the Python standard library's source"),
                            ({"path": "a", "prompt_field": "text"}, r"prompt_field: 'text' is the field that holds the "
                                                                    r"text\. Name the field that precedes it")):
        with pytest.raises(ConfigError, match=message):
            parse_run({"model": LSTM, "data": values})


def test_a_model_that_counts_refuses_tokens_that_are_only_read(tmp_path: Path) -> None:
    data = {"path": str(pairs_file(tmp_path, PAIRS * 20)), "text_field": "answer", "prompt_field": "question"}
    run = parse_run({"model": {"kind": "ngram", "order": 2}, "data": data,
                     "training": {"compute": {"matmul": "default"}}})
    with pytest.raises(ConfigError, match=r"data: some tokens are read and not scored, while a model of kind 'ngram' "
                                          r"counts every"):
        train(run, tmp_path / "run")
