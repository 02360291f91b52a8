"""Prepared folders: made once, the same tokens and batches as straight from text, and every fault noticed."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fresh import fresh
from training.tiny_runs import LSTM, write_text
from weft.core.errors import CheckpointError, ConfigError, DataError, OccupiedError
from weft.data import SequentialBatches, ShuffledBatches, stored_array
from weft.data.array import JoinedArray
from weft.data.prepared import PreparationProgress, open_prepared
from weft.data.prepared_manifest import SAMPLE_BLOCK, SAMPLE_BLOCKS, sample_hash
from weft.data.settings import DataSettings
from weft.disk.manifest import MANIFEST_FILE, sha256_of
from weft.tasks.token_streams import held_out_text
from weft.tokenizers.config import BPETokenizerConfig, ByteTokenizerConfig, CharacterTokenizerConfig, TokenizerConfig
from weft.training import RunConfig, parse_run, train
from weft.training.material import prepare, prepare_folder, with_prepared


def library(**values: Any) -> DataSettings:
    """Part of the default corpus: 30 documents or so."""
    return DataSettings(max_bytes=60_000, **values)


def run_of(data: Any, tokenizer: Any, **model: Any) -> RunConfig:
    return parse_run(with_prepared({"model": {**LSTM, **model}, "data": data, **tokenizer}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared bytes in several shards."""
    out = tmp_path_factory.mktemp("prepared") / "data"
    prepare_folder(library(), ByteTokenizerConfig(), out, shard_tokens=9000)
    return out


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.mark.parametrize("tokenizer", [ByteTokenizerConfig(), CharacterTokenizerConfig(unknown=True),
                                       BPETokenizerConfig(vocab_size=300)], ids=lambda config: config.kind)
def test_shards_give_the_streams_and_batches_of_the_text(tmp_path: Path, tokenizer: TokenizerConfig) -> None:
    data = prepare_folder(library(), tokenizer, tmp_path / "d", shard_tokens=5000).data
    text = prepare(run_of(library().model_dump(), {"tokenizer": tokenizer.dump()}))
    assert len(data.manifest.parts["train"].shards) > 3
    for name, direct in (("train", text.train), ("validation", text.validation)):
        mapped = data.stream(name)
        for field in ("tokens", "begins", "byte_lengths"):
            mine, other = getattr(mapped, field), getattr(direct, field)
            np.testing.assert_array_equal(np.asarray(mine), other)
            assert mine.dtype == other.dtype
        for field in ("begins_scored", "vocab_size", "corpus", "corpus_sha256", "tokenizer_sha256"):
            assert getattr(mapped, field) == getattr(direct, field)
        assert data.part(name).text_bytes == int(np.asarray(mapped.byte_lengths).sum(dtype=np.int64))
    assert isinstance(data.stream("train").tokens, JoinedArray)
    assert (data.manifest.corpus, data.manifest.corpus_sha256) == (text.corpus, text.corpus_sha256)
    for kind in (ShuffledBatches, SequentialBatches):
        one, other = (kind(stream, rows=4, length=700, seed=3) for stream in (data.stream("train"), text.train))
        for step in (0, 3, 40):
            for field in ("inputs", "targets", "begins", "scored", "target_bytes"):
                np.testing.assert_array_equal(getattr(one.batch(step), field), getattr(other.batch(step), field))


def test_opening_a_stream_reads_nothing_and_a_window_reads_itself(
        folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = stored_array._read_at

    def counted(number: int, into: memoryview, place: int) -> int:
        read.append(len(into))
        return real(number, into, place)

    monkeypatch.setattr(stored_array, "_read_at", counted)
    stream = open_prepared(folder).stream("train")
    assert isinstance(stream.tokens, JoinedArray) and read == []
    stream.tokens[np.array([[0], [60]]) + np.arange(40)]
    assert read == [40 * stream.tokens.dtype.itemsize] * 2


def test_a_run_on_a_prepared_folder_ends_in_the_weights_of_one_on_the_text(tmp_path: Path) -> None:
    source = write_text(tmp_path)
    data = prepare_folder(DataSettings(path=str(source), validation=0.2), BPETokenizerConfig(vocab_size=280),
                          tmp_path / "d", shard_tokens=1000).data
    training = {"training": {"steps": 3, "batch_size": 2}, "report": {"eval_batches": 1}}
    direct = parse_run({"model": LSTM, "data": {"path": str(source), "validation": 0.2},
                        "tokenizer": {"kind": "bpe", "vocab_size": 280}, **training})
    mapped = parse_run(with_prepared({"model": LSTM, "data": {"path": str(data.path)}, **training}))
    assert (mapped.data.validation, mapped.tokenizer, mapped.model.vocab_size) == (0.2, direct.tokenizer, 280)
    assert parse_run(with_prepared(mapped.dump())) == mapped
    results = [train(config, tmp_path / name) for name, config in (("a", direct), ("b", mapped))]
    assert results[0].validation.bits_per_byte == results[1].validation.bits_per_byte


def test_preparing_again_keeps_what_is_there(tmp_path: Path) -> None:
    source, out = write_text(tmp_path), tmp_path / "d"
    settings = DataSettings(path=str(source))
    told: list[PreparationProgress] = []
    first = prepare_folder(settings, ByteTokenizerConfig(), out, on_progress=told.append)
    stamp = (out / MANIFEST_FILE).stat().st_mtime_ns
    assert not first.reused and [progress.part for progress in told] == ["train", "validation"]
    assert told[0].done == told[0].total and "train: 100% of 0.0 MB" in told[0].line()
    assert prepare_folder(settings, ByteTokenizerConfig(), out, on_progress=told.append).reused
    assert len(told) == 2 and (out / MANIFEST_FILE).stat().st_mtime_ns == stamp
    with pytest.raises(DataError, match=r"tokenizer was \{'kind': 'bytes'\} and is now \{'kind': 'bpe'.*--replace"):
        prepare_folder(settings, BPETokenizerConfig(vocab_size=270), out)
    with pytest.raises(DataError, match=r"data\.validation was 0\.1 and is now 0\.3\. Prepare again with --replace"):
        prepare_folder(settings.model_copy(update={"validation": 0.3}), ByteTokenizerConfig(), out)
    source.write_text(source.read_text() + "more\n")
    with pytest.raises(DataError, match=r"the source .*text\.txt has changed\. Prepare again with --replace"):
        prepare_folder(settings, ByteTokenizerConfig(), out)
    assert open_prepared(out).changed_sources() == {str(source): "changed"}
    assert not prepare_folder(settings, ByteTokenizerConfig(), out, replace=True).reused
    assert open_prepared(out).changed_sources() == {}
    source.unlink()
    assert open_prepared(out).changed_sources() == {str(source): "missing"}


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("x")
    for replace in (False, True):
        with pytest.raises(OccupiedError, match=r"mine: this folder holds more than Weft wrote, so it is not "
                                                r"replaced: no manifest of Weft's lists letter\.txt\. Choose"):
            prepare_folder(library(), ByteTokenizerConfig(), tmp_path / "mine", replace=replace)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "x"


def spoil(path: Path, place: int = 5) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_truncated_a_changed_and_a_missing_shard_are_named(copy: Path) -> None:
    shard = copy / "train-00001.tokens.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-2])
    message = r"1 file is not as it was written:\n  - train-00001\.tokens\.bin is truncated: [\d,]+ bytes instead of"
    with pytest.raises(DataError, match=message):
        open_prepared(copy, check="size")
    shard.write_bytes(whole + b"\0")
    with pytest.raises(DataError, match=r"train-00001\.tokens\.bin has grown"):
        open_prepared(copy, check="size")
    shard.write_bytes(whole)
    spoil(shard)
    open_prepared(copy, check="size")
    with pytest.raises(DataError, match=r"tokens\.bin has changed: its SHA-256 differs.\n Prepare"):
        prepare(run_of({"path": str(copy)}, {}))  # what a run does before its first step
    (copy / "train-00000.bytes.bin").unlink()
    with pytest.raises(DataError, match=r"2 files are.*\n  - .*bytes\.bin is missing.*\n.* its SHA-256 differs"):
        open_prepared(copy, check="full")


def test_a_sample_is_bounded_and_reaches_from_the_first_byte_to_the_last(tmp_path: Path) -> None:
    path, size = tmp_path / "large", 2 * SAMPLE_BLOCKS * SAMPLE_BLOCK
    path.write_bytes(bytes(size))
    before = sample_hash(path)
    for place in (0, size // 3 // SAMPLE_BLOCK * SAMPLE_BLOCK, size - 1):
        spoil(path, place)
    assert sample_hash(path) != before
    for place in (0, size - 1):
        path.write_bytes(bytes(size))
        spoil(path, place)
        assert sample_hash(path) != before
    path.write_bytes(bytes(SAMPLE_BLOCK))
    assert sample_hash(path) == sha256_of(path)


def changed_manifest(folder: Path, **values: Any) -> None:
    path = folder / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_damaged_or_newer_manifest_is_refused(copy: Path) -> None:
    manifest = open_prepared(copy).manifest
    changed_manifest(copy, corpus="another")
    with pytest.raises(DataError, match=r"MANIFEST\.json: the manifest is damaged \(its digest does not fit"):
        open_prepared(copy)
    changed_manifest(copy, format=5)
    with pytest.raises(DataError, match=r"data have format 5, this Weft reads format 1\. Upgrade Weft"):
        open_prepared(copy)
    (copy / MANIFEST_FILE).write_text('{"format": 1, ')
    with pytest.raises(DataError, match=r"the manifest is damaged \(not JSON: .*Prepare the data again"):
        open_prepared(copy)
    content = manifest.model_dump(mode="json") | {"begins_scored": "perhaps"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (copy / MANIFEST_FILE).write_text(json.dumps(content | {"digest": digest}))
    with pytest.raises(DataError, match=r"the manifest is damaged \(begins_scored: Input should be a valid boolean"):
        open_prepared(copy)
    (copy / MANIFEST_FILE).unlink()
    with pytest.raises(DataError, match=r"the manifest is damaged \(FileNotFoundError"):
        open_prepared(copy)
    with pytest.raises(DataError, match=r"not a folder of prepared data\. Make one with: weft data prepare"):
        open_prepared(copy.parent)


def test_a_tokenizer_that_was_exchanged_is_refused(copy: Path) -> None:
    (copy / "weft_tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"the tokenizer's format is None"):
        open_prepared(copy).tokenizer()
    with pytest.raises(OccupiedError, match=r"weft_tokenizer\.json: there is a file at this path.*Choose another name"):
        CharacterTokenizerConfig().fit(["abc"]).save(copy)
    (copy / "weft_tokenizer.json").unlink()
    CharacterTokenizerConfig().fit(["abc"]).save(copy)
    with pytest.raises(DataError, match=r"the tokenizer is not the one that the tokens were made with\. Prepare"):
        open_prepared(copy).tokenizer()


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can grow beyond ``size`` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_nothing_half_made_and_keeps_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "d"
    message = r"d: the prepared data cannot be written \(File too large\)\. Free space .* no incomplete folder is left"
    with room_for(4096), pytest.raises(DataError, match=message):
        prepare_folder(library(), ByteTokenizerConfig(), out)
    assert list(tmp_path.iterdir()) == []
    prepare_folder(library(), ByteTokenizerConfig(), out)
    with room_for(4096), pytest.raises(DataError, match=message):
        prepare_folder(library(), BPETokenizerConfig(vocab_size=270), out, replace=True)
    assert open_prepared(out, check="full").manifest.tokenizer.vocab_size == 257
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def prepare_until_killed(out: str) -> None:
    """Prepare the library, and die when its second part begins."""
    def die(progress: PreparationProgress) -> None:
        if progress.part == "validation":
            os.kill(os.getpid(), signal.SIGKILL)

    prepare_folder(library(), ByteTokenizerConfig(), out, on_progress=die)


def test_a_killed_preparation_leaves_nothing_in_place_and_starts_again(tmp_path: Path) -> None:
    out = tmp_path / "d"
    done = fresh(prepare_until_killed, str(out), folder=tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    drafts = list(tmp_path.iterdir())
    assert not out.exists() and len(drafts) == 1 and drafts[0].name.startswith(".d.")
    result = prepare_folder(library(), ByteTokenizerConfig(), out)
    assert not result.reused and [path.name for path in tmp_path.iterdir()] == ["d"]
    drafts[0].mkdir()
    os.rename(out, drafts[0] / "weft-before")  # where a death between two renames leaves it
    assert prepare_folder(library(), ByteTokenizerConfig(), out).reused


def test_what_contradicts_the_folder_is_refused(folder: Path) -> None:
    bpe = {"tokenizer": {"kind": "bpe", "vocab_size": 300}}
    run = run_of({"path": str(folder), "validation": 0.4, "split_seed": 3, "order_seed": 5}, bpe)
    message = (r"3 problems(.|\n)*data\.validation: 0\.4, while .* was prepared with 0\.1\. Leave it out(.|\n)*"
               r"data\.split_seed: 3(.|\n)*tokenizer: \{'kind': 'bpe'")
    with pytest.raises(ConfigError, match=message) as told:
        prepare(run)
    assert "order_seed" not in str(told.value)
    with pytest.raises(ConfigError, match=r"model\.vocab_size: 200, while the tokenizer has 257 ids\. Leave it out"):
        prepare(run_of({"path": str(folder)}, {}, vocab_size=200))


def test_held_out_tokens_of_another_tokenizer_are_refused(folder: Path) -> None:
    settings = DataSettings(path=str(folder))
    found = held_out_text(settings, ByteTokenizerConfig().fit(()))
    assert len(found) == open_prepared(folder).part("validation").tokens
    with pytest.raises(DataError, match=r"made with another tokenizer \(bytes-257\) than the model's \(characters-4\)"):
        held_out_text(settings, CharacterTokenizerConfig().fit(["abc"]))
    with pytest.raises(DataError, match=r"the folder has no part 'test'\. Known names: train, validation"):
        held_out_text(settings, ByteTokenizerConfig().fit(()), "test")
    with pytest.raises(DataError, match=r"the folder holds prepared tokens, not text\. Give the text, or name"):
        prepare_folder(settings, ByteTokenizerConfig(), folder.parent / "again")


