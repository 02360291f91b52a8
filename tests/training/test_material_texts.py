"""Runs straight from text: a held-out text of its own, a test, records, divided files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from training.tiny_runs import LSTM, write_text
from weft import api
from weft.core.errors import ConfigError, DataError
from weft.data import embedded_corpus, encode_corpus, read_text
from weft.data.settings import DataSettings
from weft.tasks.token_streams import held_out_text, read_texts, split_corpus, text_stream
from weft.tokenizers import ByteTokenizer
from weft.tokenizers.config import ByteTokenizerConfig
from weft.training import parse_run, train
from weft.training.material import prepare, prepare_folder


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Any]:
    """Data settings with three texts."""
    write_text(tmp_path)
    (tmp_path / "valid.txt").write_text("held out: the sum of 2 and 3 is 5\n" * 9)
    (tmp_path / "test.txt").write_text("last: the sum of 1 and 1 is 2\n" * 5)
    return {"path": str(tmp_path / "text.txt"), "validation_path": str(tmp_path / "valid.txt"),
            "test_path": str(tmp_path / "test.txt")}


def test_a_held_out_text_leaves_the_training_text_whole(texts: dict[str, Any]) -> None:
    settings = DataSettings(**texts)
    train_part, validation = split_corpus(settings)
    assert train_part.sha256 == read_text(texts["path"]).sha256
    assert validation.sha256 == read_text(texts["validation_path"]).sha256
    found = read_texts(settings)
    assert found.parts["test"].sha256 == read_text(texts["test_path"]).sha256
    assert "; validation valid.txt: 1 document, " in found.corpus
    alone = read_texts(DataSettings(path=texts["path"]))
    other = read_texts(settings.model_copy(update={"validation_path": texts["test_path"]}))
    assert len({found.corpus_sha256, alone.corpus_sha256, other.corpus_sha256}) == 3


def test_a_limit_concerns_the_training_text_alone(texts: dict[str, Any]) -> None:
    train_part, validation = split_corpus(DataSettings(**texts, max_bytes=100))
    assert train_part.size_bytes <= 100 < validation.size_bytes


def test_evaluation_reads_what_the_run_held_out(texts: dict[str, Any], tmp_path: Path) -> None:
    run = parse_run({"model": LSTM, "data": texts, "training": {"steps": 1, "batch_size": 2},
                     "report": {"eval_batches": None}})
    result = train(run, tmp_path / "run")
    found = api.evaluate(tmp_path / "run")
    assert found.bytes == len((tmp_path / "valid.txt").read_bytes())
    assert found.bits_per_byte == pytest.approx(result.validation.bits_per_byte, rel=1e-6)  # another batch size
    assert api.evaluate(tmp_path / "run", part="test").bytes == len((tmp_path / "test.txt").read_bytes())
    made = prepare_folder(DataSettings(**texts), ByteTokenizerConfig(), tmp_path / "d").data
    assert api.evaluate(tmp_path / "run", made.path).bits_per_byte == pytest.approx(found.bits_per_byte, rel=1e-6)
    assert made.part("test").text_bytes == len((tmp_path / "test.txt").read_bytes())


def test_a_run_without_a_test_text_says_so() -> None:
    with pytest.raises(DataError, match=r"data\.test_path: the run has no test text\. Name one in the run's config"):
        held_out_text(DataSettings(), ByteTokenizer(), "test")


def test_records_and_lines_reach_a_run(tmp_path: Path) -> None:
    lines = [f"number {i} squared is {i * i}" for i in range(200)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("".join(
        json.dumps({"body": line}) + "\n" for line in lines).encode()))
    (tmp_path / "a.txt").write_text("\n".join(lines))
    records = prepare(parse_run({"model": LSTM, "data": {"path": str(tmp_path / "a.jsonl.gz"), "text_field": "body"}}))
    divided = prepare(parse_run({"model": LSTM, "data": {"path": str(tmp_path / "a.txt"), "documents": "line"}}))
    for material in (records, divided):
        counts = [int(stream.begins.sum()) - 1 for stream in (material.train, material.validation)]
        assert sum(counts) == 200 and counts[1] > 0  # split by document
    with pytest.raises(DataError, match=r"a\.jsonl\.gz, line 1: no field 'text'; the fields are: 'body'\."):
        prepare(parse_run({"model": LSTM, "data": {"path": str(tmp_path / "a.jsonl.gz")}}))


def test_the_default_corpus_can_be_divided() -> None:
    settings = DataSettings(documents="paragraph", max_bytes=20_000)
    corpus = read_texts(settings).parts["train"]
    assert len(corpus.documents) > 30 and all(":" in document.name for document in corpus.documents)
    assert {document.name.split(":")[0] for document in corpus.documents} <= {
        document.name for document in embedded_corpus().documents}


def test_a_text_is_encoded_as_it_is(texts: dict[str, Any]) -> None:
    stream = text_stream(texts["path"], ByteTokenizer())
    assert stream.tokens.tolist() == encode_corpus(read_text(texts["path"]), ByteTokenizer()).tokens.tolist()


def test_a_share_beside_a_held_out_text_is_refused(texts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"data\.validation: a share of 0\.2 beside the held-out text .*valid\.txt"):
        parse_run({"model": LSTM, "data": {**texts, "validation": 0.2}})
