"""Cases: a command, the options it is given, and the files it reads, one or two of which are spoilt."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from fuzz import task_seeds
from fuzz.mutations import NUMBERS, TEXTS, as_json, bytes_changed, header_changed, junk, lines_changed, mutated, nested


@dataclass(frozen=True)
class Case:
    """A command line and the files that differ from the seeds.

    Attributes:
        arguments: of ``weft``; every seed lies in the current folder under its name.
        files: the content of spoilt ones; None: a pipe that nobody writes into.
    """

    arguments: tuple[str, ...]
    files: dict[str, bytes | None] = field(default_factory=dict)


OPTIONS: dict[str, list[tuple[str, list[Any]]]] = {
    "number": [(name, NUMBERS) for name in (
        "--tokens", "--context", "--batch", "--steps", "--seed", "--threads", "--length", "--batch-size", "--stride",
        "--beams", "--limit", "--max-new-tokens", "--temperature", "--top-k", "--top-p", "--min-p", "--search",
        "--repetition-penalty", "--length-penalty", "--n-kv-heads", "--scale", "--start", "--k", "--orders",
        "--resamples", "--virtual-ties", "--confidence", "--trials", "--seeds")],
    "text": [(name, TEXTS) for name in (
        "--dtype", "--device", "--kernels", "--template", "--prompt", "--text", "--second", "--stop", "--message",
        "--system", "--variable", "--method", "--part", "--context", "--lengths", "--task", "--family", "--to",
        "--plugin", "--data", "--from", "--tokenizer", "--max-shard-size", "--budget", "--study", "--text-field",
        "--winner-field",
        "--messages", "--tokens", "--text-file", "--base")],
    "flag": [(name, [None]) for name in (
        "--json", "--greedy", "--documents", "--strict", "--replace", "--ignore-end", "--cut", "--resume", "--bleu",
        "--verify", "--offline")]}
SMALL = {"generate": ["--prompt", "a", "--max-new-tokens", "3"], "score": ["--text", "the cat"],
         "chat": ["--message", "Hi", "--max-new-tokens", "3"], "eval": ["--data", "text.txt", "--limit", "2"],
         "extend": ["--context", "16", "--data", "text.txt", "--out", "new"], "convert": [], "draw": ["--out", "new"],
         "translate": ["sources.txt"], "plan": [], "check": []}
SPOILT = {".json": "tree", ".yaml": "tree", ".jsonl": "lines", ".txt": "lines", ".arpa": "lines", ".csv": "lines",
          ".jinja": "lines", ".safetensors": "header", ".py": "lines"}


@st.composite
def cases(draw: Any, seeds: Path) -> Case:
    """A case of any command."""
    arguments, reads = draw(st.sampled_from(WAYS))(draw, seeds)
    files: dict[str, bytes | None] = {}
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2])) if reads else 0):
        name = draw(st.sampled_from(reads))
        files[name] = _spoilt(draw, name, (seeds / name).read_bytes())
    return Case((*arguments, *_options(draw)), files)


def _spoilt(draw: Any, name: str, content: bytes) -> bytes | None:
    how = SPOILT.get(Path(name).suffix, "bytes")
    how = draw(st.sampled_from([how] * 12 + ["bytes", "bytes", "pipe", "empty", "deep"]))
    if how == "pipe":
        return None
    if how == "tree":
        tree = mutated(draw, yaml.safe_load(content) if name.endswith(".yaml") else json.loads(content))
        return as_json(tree)
    if how == "empty":
        return b""
    if how == "deep":
        return as_json(nested(draw(st.sampled_from([50, 100, 900])), {}))
    return {"lines": lines_changed, "header": header_changed, "bytes": bytes_changed}[how](draw, content)


def _options(draw: Any) -> list[str]:
    given: list[str] = []
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        name, values = draw(st.sampled_from(OPTIONS[draw(st.sampled_from(sorted(OPTIONS)))]))
        value = draw(st.sampled_from(values))
        given += [name] if value is None else [name, _argument(value)]
    return given


def _argument(value: Any) -> str:
    """A value as the system passes it on: no zero character, no half of a surrogate pair."""
    return str(value).replace("\0", "").encode("utf-8", "replace").decode()


def _configured(draw: Any, seeds: Path) -> tuple[list[str], list[str]]:
    command = draw(st.sampled_from([["plan"], ["config", "show"], ["train"], ["config", "schema"], ["draw"]]))
    alone = [] if command == ["train"] else ["model.json"]  # it would train for as long as the defaults say
    config = draw(st.sampled_from(["tiny.yaml", "tiny.json", *alone]))
    more = {"train": ["--out", "new", "--steps", "2"], "draw": ["--out", "new"]}.get(command[0], [])
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=2))
    changes = [f"{key}={_written(draw(junk()))}" for key in keys]
    return [*command, config, *changes, *more], [config] if command[0] != "train" else [config, "text.txt"]


KEYS = ["model.d_model", "model.blocks", "model.blocks.0.layers", "model.blocks.0.layers.0", "model.vocab_size",
        "model.context", "model.position", "tokenizer", "training.steps", "training.batch_size", "training.optimizer",
        "training.schedule", "training.optimizer.lr", "training.clip_norm", "training.context", "data", "data.path",
        "seed", "report", "model.norm", "model.blocks.0.layers.0.n_heads", "model.blocks.0.layers.0.mask",
        "training.compute", "model", "", "a.b.c", "tokenizer.vocab_size", "model.blocks.0.layers.1.d_ff"]


def _written(value: Any) -> str:
    try:
        return _argument(json.dumps(value))[:2_000]
    except (ValueError, TypeError):
        return _argument(value)[:2_000]


def _foreign(draw: Any, seeds: Path) -> tuple[list[str], list[str]]:
    name = draw(st.sampled_from(sorted(os.listdir(seeds / "foreign"))))
    command = draw(st.sampled_from(["plan", "generate", "score", "chat", "convert", "eval", "extend", "draw"]))
    target = ["new"] if command == "convert" else []
    reads = [f"foreign/{name}/{each}" for each in sorted(os.listdir(seeds / "foreign" / name))]
    return [command, f"foreign/{name}", *target, *SMALL[command]], reads


def _run(draw: Any, seeds: Path) -> tuple[list[str], list[str]]:
    command = draw(st.sampled_from(["plan", "generate", "score", "chat", "convert", "eval", "check", "draw", "extend"]))
    target = ["new"] if command == "convert" else []
    place = "run/checkpoints/00000002"
    reads = [f"{place}/{each.name}" for each in sorted((seeds / place).iterdir()) if each.is_file()]
    reads += [f"run/{each.name}" for each in sorted((seeds / "run").iterdir()) if each.is_file()]
    return [command, draw(st.sampled_from(["run", place])), *target, *SMALL[command]], reads


def _texts(draw: Any, seeds: Path) -> tuple[list[str], list[str]]:
    data = draw(st.sampled_from(["text.txt", "text.jsonl", "chat.jsonl", "text.txt.gz", "text.txt.bz2", "text.txt.xz"]))
    command = draw(st.sampled_from([["train", "tiny.yaml", "--out", "new", "--data"], ["eval", "run", "--data"],
                                    ["data", "prepare", "--tokenizer", "bytes", "--out", "new"]]))
    return [*command, data], [data]


def _others(draw: Any, seeds: Path) -> tuple[list[str], list[str]]:
    return draw(st.sampled_from([
        (["generate", "run", "--tokens", "rows.json", "--max-new-tokens", "2"], ["rows.json"]),
        (["score", "run", "--tokens", "rows.json"], ["rows.json"]),
        (["generate", "run", "--messages", "messages.json", "--template", "mine.jinja", "--max-new-tokens", "2"],
         ["messages.json", "mine.jinja"]),
        (["chat", "run", "--message", "a", "--messages", "messages.json", "--template", "plain",
          "--max-new-tokens", "2"], ["messages.json"]),
        (["convert", "lm.arpa", "new", "--to", "weft"], ["lm.arpa"]),
        (["plan", "lm.arpa"], ["lm.arpa"]), (["score", "lm.arpa", "--text", "a b"], ["lm.arpa"]),
        (["rate", "games.csv"], ["games.csv"]), (["rate", "games.jsonl"], ["games.jsonl"]),
        (["data", "inspect", "prepared"], ["prepared/MANIFEST.json"]), (["list", "attention"], []),
        (["list", "--plugin", "part.py"], ["part.py"]), (["draw", "run", "--out", "new", "--text-file", "sources.txt"],
                                                         ["sources.txt"]),
        (["compare", "--study", "study.json", "--out", "new"], ["study.json"]),
        (["train", "run", "--steps", "3", "--out", "new"], ["run/config.yaml"]),
        (["train", "tiny.yaml", "data.path=images.npz", "task=images", "--out", "new"], ["images.npz"]),
        (["train", "tiny.yaml", "data.path=images-idx3-ubyte", "task=images", "--out", "new"], ["images-idx3-ubyte"]),
    ]))


def _task(draw: Any, seeds: Path) -> tuple[list[str], list[str]]:
    name = draw(st.sampled_from(sorted(task_seeds.RUNS)))
    config, file = f"tasks/{name}.json", task_seeds.RUNS[name][2]
    command = draw(st.sampled_from([["train"], ["train"], ["train"], ["plan"], ["check"], ["config", "show"]]))
    more = {"train": ["--out", "new", "--steps", "2"]}.get(command[0], [])
    chosen = draw(st.lists(st.sampled_from([*task_seeds.keys(name), *KEYS]), max_size=2))
    if command[0] == "train" and draw(st.booleans()):
        more += ["--kernels", draw(st.sampled_from(FORMS))]
    return [*command, config, *(f"{key}={_written(draw(junk()))}" for key in chosen), *more], [
        config, *([f"tasks/{file}"] * 2 if file else [])]


FORMS = ["attention=native", "attention=banded", "attention=reference", "linear=native", "scan=native", "attention=no",
         "norm=native", "attention", "=native", "attention=native,linear=native", "cross_entropy=reference"]

WAYS = [_configured, _configured, _configured, _foreign, _foreign, _foreign, _run, _run, _texts, _others, _others,
        _task, _task]
