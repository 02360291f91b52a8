"""Everything of Weft that reads what others wrote, each with the files that it reads and how they are spoilt."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

import weft
from fuzz.binary import (
    Spoil,
    archive_changed,
    gguf_changed,
    parquet_changed,
    pickle_changed,
    protobuf_changed,
)
from fuzz.mutations import as_json, bytes_changed, header_changed, lines_changed, mutated, nested
from weft.api.configs import read_model, read_run
from weft.api.data import data_inspect, data_sample
from weft.chat.messages import read_messages
from weft.chat.template import chat_template
from weft.checkpoints.load import load_checkpoint, read_training
from weft.checkpoints.tensors import read_tensors
from weft.comparison.ratings.games import read_games
from weft.comparison.study import read_study
from weft.core.base_model import built_empty
from weft.core.errors import CheckpointError, TokenizerError
from weft.core.strict_json import digest
from weft.data.conversations import read_conversations
from weft.data.image_files import read_image_arrays
from weft.data.records import whole_records
from weft.data.saved_datasets import saved_dataset
from weft.data.text import read_text
from weft.decoding import read_rows
from weft.disk.manifest import MANIFEST_FILE, write_manifest
from weft.interop.adapters.opening import load_adapted
from weft.interop.arpa.reader import read_arpa
from weft.interop.formats import TARGETS, ConversionSource
from weft.interop.huggingface.loading import load_folder
from weft.interop.huggingface.stored import open_stored, read_pickled
from weft.interop.rwkv import load_original
from weft.tokenizers import Tokenizer
from weft.tokenizers.base import SETTINGS_FILE
from weft.tokenizers.config import known_tokenizers
from weft.tokenizers.files import load_tokenizer
from weft.tokenizers.published import read_tokenizer
from weft.tokenizers.specials import Conventions

SENTENCE = "The cat sat.\n\n  世界 😀 \x00 e\u0301 <s></s> <|user|>"


def tree_changed(draw: Any, content: bytes) -> bytes:
    """A document of JSON or YAML, as JSON, with other values; seldom with other bytes."""
    how = draw(st.integers(0, 19))
    if how == 0:
        return as_json(nested(draw(st.sampled_from([50, 100, 900])), {}))
    return bytes_changed(draw, content) if how == 1 else as_json(mutated(draw, yaml.safe_load(content)))


HOW: Mapping[str, Spoil] = {
    ".json": tree_changed, ".yaml": tree_changed, ".jsonl": lines_changed, ".txt": lines_changed, ".csv": lines_changed,
    ".tsv": lines_changed, ".arpa": lines_changed, ".jinja": lines_changed, ".safetensors": header_changed,
    ".model": protobuf_changed, ".parquet": parquet_changed, ".bin": archive_changed, ".pth": archive_changed,
    ".npz": archive_changed, ".pkl": pickle_changed, ".gguf": gguf_changed}
"""How a file is changed, by the end of its name; others byte by byte."""


def spoilt(draw: Any, name: str, content: bytes) -> bytes:
    """A file's content, changed as its kind is, seldom byte by byte."""
    how = HOW.get(Path(name).suffix, bytes_changed)
    return (bytes_changed if draw(st.integers(0, 9)) == 0 else how)(draw, content)


@dataclass(frozen=True)
class Reader:
    """One of Weft's readers.

    Attributes:
        seeds: a folder of valid files.
        read: reads them, as a command does, far enough that nothing of them is left unread.
        spoils: those that are changed; empty: all.
        seal: puts sums and digests right after a change, as whoever made a hostile file would.
    """

    seeds: str
    read: Callable[[Path], object]
    spoils: tuple[str, ...] = ()
    seal: Callable[[Path], None] = field(default=lambda folder: None)


def _config(name: str) -> Callable[[Path], object]:
    return lambda folder: built_empty((read_run(folder / name).model) if name != "model.json"
                                     else read_model(folder / name))


def _use(tokenizer: Tokenizer | None) -> None:
    """Everything that a tokenizer is asked for. That it has no id for a character is no fault."""
    if tokenizer is None:
        return
    ids: list[int] = []
    with contextlib.suppress(TokenizerError):
        ids = tokenizer.encode(SENTENCE)
        tokenizer.encode(SENTENCE, specials=True)
        tokenizer.measure(SENTENCE)
    held = [*ids[:20], *range(min(tokenizer.vocab_size, 12))]
    tokenizer.decode(held, specials=True)
    stream = tokenizer.stream()
    for token in held:
        stream.push(token)
    stream.finish()
    tokenizer.saved()
    tokenizer.may_join("a", "\n")


def _own_tokenizer(folder: Path) -> None:
    try:
        _use(load_tokenizer(folder, kinds=known_tokenizers()))
    except CheckpointError as error:
        if "fingerprint differs" not in str(error):
            raise
        content = json.loads((folder / SETTINGS_FILE).read_bytes())
        found = known_tokenizers()[content["kind"]].from_settings(content["settings"], folder)
        if "conventions" in content:
            found = found.with_conventions(Conventions.from_json(content["conventions"]))
        _use(found)


def _template(folder: Path) -> None:
    template = chat_template(load_tokenizer(folder / "tokenizer"), folder / "mine.jinja")
    messages = read_messages(folder / "messages.json")
    template.text(messages, add_generation_prompt=True)
    template.encode(messages)


def _stored(folder: Path) -> None:
    stored = open_stored(folder)
    for name in stored.entries:
        stored.get(name)


def _foreign(folder: Path) -> None:
    _use(load_folder(folder, strict=True).tokenizer)


def _checkpoint(folder: Path) -> None:
    _use(load_checkpoint(folder).tokenizer)
    read_training(folder)


def _gguf(folder: Path) -> None:
    loaded = load_folder(folder / "model")
    assert isinstance(loaded.model, weft.core.model.LanguageModel)
    TARGETS["gguf"].read(ConversionSource(loaded, loaded.model, None, 1 << 30), folder / "a.gguf")


def _prepared(folder: Path) -> None:
    data_inspect(folder)
    for each in ("train", "validation"):
        data_sample(folder, each, windows=1, context=4)


def _prepared_sealed(folder: Path) -> None:
    path = folder / MANIFEST_FILE
    try:
        content = json.loads(path.read_bytes())
        content.pop("digest", None)
        path.write_text(json.dumps({**content, "digest": digest(content)}))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return


def _sealed(folder: Path) -> None:
    if (folder / MANIFEST_FILE).is_file():
        write_manifest(folder)


def _corpus(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        corpus = read_text(folder / name)
        for document in list(corpus.documents)[:50]:
            str(document.text)

    return read


def _whole(name: str) -> Callable[[Path], object]:
    return lambda folder: list(whole_records(folder / name, Path(name).suffix))


FIELDS = {"text_field": "text"}
READERS: dict[str, Reader] = {
    "run configuration": Reader("configs", _config("tiny.yaml"), ("tiny.yaml",)),
    "run configuration in JSON": Reader("configs", _config("tiny.json"), ("tiny.json",)),
    "model configuration": Reader("configs", _config("model.json"), ("model.json",)),
    "study": Reader("configs", lambda folder: read_study([], study=folder / "study.json"), ("study.json",)),
    **{f"tokenizer {name}": Reader(f"tokenizers/{name}", lambda folder: _use(read_tokenizer(folder)))
       for name in ("bpe", "unigram", "words", "files", "bert", "world", "pieces")},
    **{f"own tokenizer {name}": Reader(f"own/{name}", _own_tokenizer)
       for name in ("bpe", "unigram", "wordpiece", "words", "characters", "sentencepiece", "file")},
    "tensors": Reader("tensors", lambda folder: read_tensors(folder / "model.safetensors"), ("model.safetensors",)),
    "shards of tensors": Reader("shards", _stored),
    "pickle": Reader("pickles", lambda folder: read_pickled(folder / "a.bin"), ("a.bin",)),
    "pickle of old": Reader("pickles", lambda folder: read_pickled(folder / "old.pkl"), ("old.pkl",)),
    "rwkv": Reader("pickles", lambda folder: load_original(folder / "rwkv.pth"), ("rwkv.pth",)),
    **{f"folder {name}": Reader(f"foreign/{name}", _foreign) for name in ("llama", "gpt2", "bert", "mamba")},
    "checkpoint": Reader("checkpoint", _checkpoint, seal=_sealed),
    "checkpoint of many": Reader("sharded", _checkpoint, seal=_sealed),
    "adapter": Reader("adapter/adapter", lambda folder: load_adapted(folder, base=str(folder.parent / "base")),
                      seal=_sealed),
    "peft": Reader("adapter/peft", lambda folder: load_adapted(folder, base=str(folder.parent / "base"))),
    "gguf": Reader("gguf", _gguf, ("a.gguf",)),
    "parquet": Reader("tables", _whole("a.parquet"), ("a.parquet",)),
    "parquet of text": Reader("tables", _corpus("b.parquet"), ("b.parquet",)),
    **{f"text {name}": Reader("tables", _corpus(name), (name,))
       for name in ("text.jsonl", "text.txt", "text.txt.gz", "text.txt.bz2", "text.txt.xz", "text.txt.zst", "a.csv")},
    "records": Reader("tables", _whole("array.json"), ("array.json",)),
    "conversations": Reader("tables", lambda folder: read_conversations(folder / "chat.jsonl"), ("chat.jsonl",)),
    "games": Reader("tables", lambda folder: read_games(folder / "games.csv"), ("games.csv",)),
    "games of lines": Reader("tables", lambda folder: read_games(folder / "games.jsonl"), ("games.jsonl",)),
    "rows": Reader("tables", lambda folder: read_rows(folder / "rows.json"), ("rows.json",)),
    "arpa": Reader("tables", lambda folder: read_arpa(folder / "lm.arpa"), ("lm.arpa",)),
    "arpa packed": Reader("tables", lambda folder: read_arpa(folder / "lm.arpa.gz"), ("lm.arpa.gz",)),
    "template": Reader("chat", _template, ("mine.jinja", "messages.json")),
    "prepared data": Reader("prepared", _prepared, seal=_prepared_sealed),
    "saved data set": Reader("saved", lambda folder: saved_dataset(folder, FIELDS, whole=True)),
    **{f"images {name}": Reader("images", lambda folder, name=name: read_image_arrays(folder / name),  # type: ignore[misc]
                                (name,)) for name in ("a.npz", "images.npy", "images-idx3-ubyte")},
    "images": Reader("images/classes", lambda folder: read_image_arrays(folder))}
"""By name. A reader's folder is its own: what it reads lies in it, or beside it under `seeds`."""
