"""Valid files of every kind that a command reads, which `mutations` spoils."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import yaml
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from typer.testing import CliRunner

from fuzz import task_seeds
from interop.huggingface.tiny_folders import stored, write_case
from weft.cli.main import app

MODEL: dict[str, Any] = {
    "kind": "decoder", "d_model": 8, "context": 8,
    "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"},
                                          {"kind": "mlp", "d_ff": 16}]}]}
RUN: dict[str, Any] = {"model": MODEL, "tokenizer": "bytes", "data": {"path": "text.txt"},
                       "training": {"steps": 2, "batch_size": 2, "optimizer": {"kind": "adamw", "lr": 0.01},
                                    "schedule": {"kind": "cosine", "warmup": 0.1}, "compute": {"matmul": "default"}},
                       "report": {"eval_batches": 1}}
STUDY: dict[str, Any] = {"name": "s", "models": ["lstm", "ngram"], "budget": {"tokens": 1000},
                         "data": {"path": "text.txt"}}
SENTENCE = "the cat sat on the mat. {} and {} are {}\n"
TEMPLATE = ("{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{{ m['content'] | trim }}{{ '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'A:' }}{% endif %}")
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def make(folder: Path) -> None:
    """Write one of everything into ``folder``."""
    (folder / "text.txt").write_text("".join(SENTENCE.format(i % 17, i % 7, i % 5) for i in range(200)), "utf-8")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RUN, sort_keys=False), "utf-8")
    _as_json(folder / "tiny.json", RUN)
    _as_json(folder / "model.json", MODEL)
    _as_json(folder / "study.json", STUDY)
    _call("train", folder / "tiny.yaml", "--data", folder / "text.txt", "--out", folder / "run")
    _call("data", "prepare", folder / "text.txt", "--out", folder / "prepared", "--tokenizer", "bytes")
    _foreign(folder)
    _texts(folder)
    _arrays(folder)
    task_seeds.write(folder / "tasks")


def _call(*arguments: str | Path) -> None:
    told = CliRunner().invoke(app, [str(each) for each in arguments])
    assert told.exit_code == 0, told.output


def _foreign(folder: Path) -> None:
    names = [name for name in stored() if name != "transfo-xl"]
    for number, name in enumerate(names):
        place = folder / "foreign" / name.replace("/", "_")
        write_case(place, stored()[name])
        _tokenizer(place, int(stored()[name]["config"].get("vocab_size") or 64), number)


def _tokenizer(place: Path, size: int, number: int) -> None:
    """A byte-level tokenizer.json, a unigram one, or vocab.json and merges.txt."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["</s>"], show_progress=False)
    library.train_from_iterator([SENTENCE], trainer)
    if number % 3 == 0:
        library.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    if number % 3 == 2:
        model = json.loads(library.to_str())["model"]
        _as_json(place / "vocab.json", model["vocab"])
        (place / "merges.txt").write_text("#version: 0.2\n" + "".join(
            " ".join(pair) + "\n" for pair in model["merges"]), "utf-8")
    else:
        library.save(str(place / "tokenizer.json"))
    _settings(place)


def _settings(place: Path) -> None:
    """What lies beside a tokenizer's vocabulary."""
    _as_json(place / "tokenizer_config.json", {
        "tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>", "add_bos_token": False, "chat_template": TEMPLATE,
        "added_tokens_decoder": {"0": {"content": "</s>", "special": True, "lstrip": False, "rstrip": False}}})
    _as_json(place / "special_tokens_map.json", {"eos_token": {"content": "</s>"}})
    _as_json(place / "generation_config.json", {"eos_token_id": [0], "temperature": 0.7})


def _texts(folder: Path) -> None:
    (folder / "rows.json").write_text("[[1, 2, 3], [4], {\"tokens\": [5, 6]}]", "utf-8")
    _as_json(folder / "messages.json", MESSAGES)
    (folder / "mine.jinja").write_text(TEMPLATE, "utf-8")
    for name, record in (("text", {"text": "the cat sat on the mat, twice and again"}),
                         ("chat", {"messages": [*MESSAGES, {"role": "assistant", "content": "Hi"}]}),
                         ("games", {"model_a": "x", "model_b": "y", "winner": "model_a"})):
        (folder / f"{name}.jsonl").write_text(f"{json.dumps(record)}\n" * 20, "utf-8")
    (folder / "games.csv").write_text("model_a,model_b,winner\nx,y,model_a\ny,z,tie\nz,x,model_b\n", "utf-8")
    (folder / "sources.txt").write_text("a b\nc d\n", "utf-8")
    (folder / "lm.arpa").write_text(
        "\\data\\\nngram 1=4\nngram 2=3\n\n\\1-grams:\n-1.0\t<s>\t-0.3\n-0.6\ta\t-0.3\n-0.6\tb\t-0.3\n-0.6\t</s>\n\n"
        "\\2-grams:\n-0.3\t<s> a\n-0.3\ta b\n-0.3\tb </s>\n\n\\end\\\n", "utf-8")
    text = (folder / "text.txt").read_bytes()
    for ending, packed in ((".gz", gzip.compress(text)), (".bz2", bz2.compress(text)), (".xz", lzma.compress(text))):
        (folder / f"text.txt{ending}").write_bytes(packed)
    (folder / "part.py").write_text("from weft.core.registry import register\n", "utf-8")


def _arrays(folder: Path) -> None:
    images, labels = np.zeros((8, 4, 4), np.uint8), np.arange(8) % 2
    held = io.BytesIO()
    np.savez_compressed(held, images=images, labels=labels)
    (folder / "images.npz").write_bytes(held.getvalue())
    (folder / "images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 8, 4, 4) + images.tobytes())
    (folder / "labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 8)
                                               + labels.astype(np.uint8).tobytes())


def _as_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1), "utf-8")
