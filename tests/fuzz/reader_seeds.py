"""Valid files for every reader of `readers`, each reader's in a folder of its own."""

from __future__ import annotations

import gzip
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import sentencepiece
import tokenizers
import torch
import zstandard
from PIL import Image
from pyarrow import parquet
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import weft
from fuzz import seeds
from interop.adapters.test_own_and_peft import LORA
from interop.adapters.test_own_and_peft import make as make_adapter
from interop.huggingface.tiny_folders import stored, write_case
from interop.test_rwkv_files import VERSIONS, written
from weft.disk.manifest import write_manifest
from weft.tokenizers import BPETokenizer, CharacterTokenizer, Tokenizer, UnigramTokenizer, WordPieceTokenizer
from weft.tokenizers.published import read_tokenizer
from weft.tokenizers.sentence_piece import train_sentence_piece
from weft.tokenizers.words import WordTokenizer

WORLD = "".join(f"{place} {piece!r} {len(piece)}\n" for place, piece in enumerate(
    [*(bytes([byte]) for byte in range(256)), b"the", b"the cat", "世".encode()[:2]], 1))
"""RWKV World's vocabulary: an id, a text or its bytes as Python writes them, and its number of bytes, on each line."""
LINES = [seeds.SENTENCE.format(i % 17, i % 7, i % 5) for i in range(60)]


def make(folder: Path, made: Path) -> None:
    """Write one of everything into ``folder``; ``made``: where `seeds.make` has written."""
    _configs(folder / "configs", made)
    _tokenizers(folder / "tokenizers")
    _own(folder / "own", folder / "tokenizers/bpe")
    _weights(folder)
    _checkpoints(folder, made)
    _tables(folder / "tables", made)
    _chat(folder / "chat", folder / "own/bpe")
    shutil.copytree(made / "prepared", folder / "prepared")
    _saved(folder / "saved")
    _images(folder / "images", made)


def _configs(folder: Path, made: Path) -> None:
    folder.mkdir()
    for name in ("tiny.yaml", "tiny.json", "model.json", "text.txt"):
        shutil.copyfile(made / name, folder / name)
    seeds._as_json(folder / "study.json", {
        "name": "s", "models": {"lstm": "lstm", "ngram": {"config": "ngram", "overrides": ["seed=1"]}},
        "budget": {"kind": "parameters", "amount": 300000}, "length": {"tokens": 72000},
        "trials": {"count": 3, "ratio": 4, "share": 0.4}, "seeds": {"count": 2, "vary": "both"},
        "measure": {"checkpoints": 2, "contexts": [16, 64]}, "data": {"path": "text.txt"}})


def _tokenizers(folder: Path) -> None:
    """Folders of published vocabularies, each kind once."""
    for number, name in ((0, "bpe"), (2, "files")):
        (folder / name).mkdir(parents=True)
        seeds._tokenizer(folder / name, 64, number)
    unigram = tokenizers.Tokenizer(models.Unigram())
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    unigram.train_from_iterator(LINES, trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False))
    unigram.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    words = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    words.decoder = decoders.WordPiece()
    words.train_from_iterator(LINES, trainers.WordPieceTrainer(
        vocab_size=60, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False))
    for name, library in (("unigram", unigram), ("words", words)):
        (folder / name).mkdir()
        library.save(str(folder / name / "tokenizer.json"))
    (folder / "bert").mkdir()
    (folder / "bert/vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s", "a"]))
    seeds._as_json(folder / "bert/tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    (folder / "world").mkdir()
    (folder / "world/rwkv_vocab_v20230424.txt").write_text(WORLD, "utf-8")
    (folder / "pieces").mkdir()
    held = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=held, vocab_size=300,
                                             byte_fallback=True, minloglevel=3, hard_vocab_limit=False)
    (folder / "pieces/tokenizer.model").write_bytes(held.getvalue())
    seeds._as_json(folder / "pieces/tokenizer_config.json", {
        "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True})


def _own(folder: Path, published: Path) -> None:
    """Weft's own tokenizers, saved."""
    made: dict[str, Tokenizer] = {
        "bpe": BPETokenizer.train(LINES, 280), "unigram": UnigramTokenizer.train(LINES, 293),
        "wordpiece": WordPieceTokenizer.train(LINES, 55), "words": WordTokenizer.train(LINES),
        "characters": CharacterTokenizer.train(LINES),
        "sentencepiece": train_sentence_piece(LINES, 300, algorithm="bpe"), "file": read_tokenizer(published)}
    for name, tokenizer in made.items():
        (folder / name).mkdir(parents=True)
        tokenizer.save(folder / name)


def _weights(folder: Path) -> None:
    (folder / "tensors").mkdir()
    save_file({"w": torch.ones(2, 3), "b": torch.zeros(3, dtype=torch.int64), "c": torch.ones(1, 2, 2)},
              folder / "tensors/model.safetensors", metadata={"complex": "[\"c\"]"})
    shards = folder / "shards"
    shards.mkdir()
    for number in (1, 2):
        save_file({f"w{number}": torch.ones(2, 3)}, shards / f"model-0000{number}-of-00002.safetensors")
    seeds._as_json(shards / "model.safetensors.index.json", {"metadata": {"total_size": 48}, "weight_map": {
        f"w{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}})
    pickles = folder / "pickles"
    pickles.mkdir()
    tensors = {"w": torch.ones(2, 3), "b": torch.zeros(3, dtype=torch.bfloat16)}
    torch.save(tensors, pickles / "a.bin")
    torch.save(tensors, pickles / "old.pkl", _use_new_zipfile_serialization=False)
    torch.save(written(VERSIONS[0])[1], pickles / "rwkv.pth")
    for name in ("llama", "gpt2", "bert", "mamba"):
        place = folder / "foreign" / name
        write_case(place, stored()[name])
        words = tokenizers.Tokenizer(models.WordLevel({"</s>": 0, "<unk>": 1, "the": 2, "cat": 3}, unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        words.save(str(place / "tokenizer.json"))
        seeds._settings(place)
    (folder / "gguf").mkdir()
    write_case(folder / "gguf/model", stored()["llama"])
    weft.convert(folder / "gguf/model", folder / "gguf/a.gguf", to="gguf")


def _checkpoints(folder: Path, made: Path) -> None:
    whole, many = folder / "checkpoint", folder / "sharded"
    for each in (whole, many):
        shutil.copytree(made / "run/checkpoints/00000002", each)
    (many / "sharded").mkdir()
    index: dict[str, Any] = {}
    held: dict[str, torch.Tensor] = {}
    for prefix, name in (("model.", "model.safetensors"), ("training.", "training.safetensors")):
        for key, tensor in load_file(many / name).items():
            held[f"{prefix}{key}"] = tensor
            index[f"{prefix}{key}"] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape),
                                       "boxes": [{"offsets": [0] * tensor.dim(), "shape": list(tensor.shape),
                                                  "file": "rank-00000.safetensors", "key": f"{prefix}{key}"}]}
        (many / name).unlink()
    save_file(held, many / "sharded/rank-00000.safetensors")
    seeds._as_json(many / "sharded/index.json", index)
    write_manifest(many)
    case = make_adapter(folder / "adapter", [LORA])
    for to in ("adapter", "peft"):
        weft.convert(case.whole, folder / "adapter" / to, to=to, base=str(case.base))


def _tables(folder: Path, made: Path) -> None:
    folder.mkdir()
    for name in ("text.txt", "text.txt.gz", "text.txt.bz2", "text.txt.xz", "text.jsonl", "chat.jsonl", "games.csv",
                 "games.jsonl", "rows.json", "lm.arpa"):
        shutil.copyfile(made / name, folder / name)
    text = (made / "text.txt").read_bytes()
    (folder / "text.txt.zst").write_bytes(zstandard.compress(text))
    (folder / "lm.arpa.gz").write_bytes(gzip.compress((made / "lm.arpa").read_bytes()))
    (folder / "a.csv").write_text("text,n\n\"the cat, \"\"sat\"\"\",1\nb,2\n", "utf-8")
    seeds._as_json(folder / "array.json", [{"text": "a", "n": [1, {"b": None}]}, {"text": "b"}])
    rows = [{"text": f"the cat {i % 3} sat", "n": i, "list": [i] * (i % 3), "deep": {"a": [{"b": str(i)}]},
             "raw": b"\0\xff"} for i in range(50)]
    parquet.write_table(arrow.Table.from_pylist(rows), folder / "a.parquet", row_group_size=20)
    parquet.write_table(arrow.Table.from_pylist([{"text": row["text"]} for row in rows]), folder / "b.parquet",
                        compression="gzip", use_dictionary=False, data_page_version="2.0")


def _chat(folder: Path, tokenizer: Path) -> None:
    shutil.copytree(tokenizer, folder / "tokenizer")
    (folder / "mine.jinja").write_text(seeds.TEMPLATE.replace("{% if", "\n{% if").replace(" %}", " %}\n"), "utf-8")
    seeds._as_json(folder / "messages.json", seeds.MESSAGES)


def _saved(folder: Path) -> None:
    folder.mkdir()
    table = arrow.Table.from_pylist([{"text": f"a {i}", "n": i} for i in range(30)])
    with arrow.OSFile(str(folder / "data-0.arrow"), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    seeds._as_json(folder / "state.json", {"_data_files": [{"filename": "data-0.arrow"}], "_split": "train"})


def _images(folder: Path, made: Path) -> None:
    folder.mkdir()
    for name in ("images.npz", "images-idx3-ubyte", "labels-idx1-ubyte"):
        shutil.copyfile(made / name, folder / name.replace("images.npz", "a.npz"))
    np.save(folder / "images.npy", np.zeros((4, 3, 3), np.float32))
    np.save(folder / "labels.npy", np.arange(4))
    for name in ("cat", "dog"):
        (folder / "classes" / name).mkdir(parents=True)
        Image.fromarray(np.full((4, 4), 7, np.uint8)).save(folder / "classes" / name / "1.png")

