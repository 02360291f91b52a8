"""Weft from Python: load, train, check, generate, score and evaluate. Each command of ``weft`` renders one of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from weft.analysis import Diagnosis, Entry, Plan, catalogue, doctor
from weft.analysis import plan as plan_model
from weft.analysis.describe import Description, describe
from weft.checkpoints import Loaded, load_checkpoint
from weft.core.errors import InputError, UnsupportedError, UserError, nearest
from weft.core.model import ModelConfig
from weft.core.registry import load_plugin
from weft.core.schema import json_schema
from weft.data import encode_corpus, read_text
from weft.decoding import GREEDY, Generated, NewToken, Row, RowLike, Sampling
from weft.decoding import generate as continue_rows
from weft.decoding import stream as stream_rows
from weft.decoding.generate import NEVER, Ending
from weft.evaluation import Evaluation, Scored
from weft.evaluation import evaluate as evaluate_stream
from weft.evaluation import score as score_rows
from weft.evaluation.evaluate import Mode
from weft.laws.check import CheckResult
from weft.laws.check import check as check_laws
from weft.tokenizers import Tokenizer
from weft.training import Event, RunConfig, TrainResult, load_model_config, load_run
from weft.training import train as train_run
from weft.training.config import DTYPES, DataSettings
from weft.training.files import read_plain
from weft.training.material import split_corpus

Model = str | Path | Loaded
"""A checkpoint's folder, or one that has been loaded."""


def presets() -> list[str]:
    """Names of the configurations that come with Weft."""
    return sorted(file.name.removesuffix(".yaml") for file in resources.files("weft.preset_files").iterdir()
                  if file.name.endswith(".yaml"))


def config_path(config: str | Path) -> Path:
    """The file of a configuration: a path, or the name of a preset.

    Raises:
        InputError: neither.
    """
    path = Path(config)
    if path.is_file() or path.suffix in (".yaml", ".yml", ".json"):
        return path
    if str(config) in presets():
        return Path(str(resources.files("weft.preset_files") / f"{config}.yaml"))
    raise InputError(f"{str(config)!r} is neither a file nor a preset.", where="config",
                     remedy=f"{nearest(str(config), presets())} Or give the path of a YAML or JSON file.")


def config_schema(config: str | Path | None = None) -> dict[str, Any]:
    """The JSON Schema of run configurations; of the model's own kind, for a file that holds only a model."""
    alone = config is not None and "kind" in read_plain(config_path(config))
    return json_schema(type(read_model(config)) if config is not None and alone else RunConfig)


def read_run(config: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """A run's configuration from a file or preset, with ``key.path=value`` changes."""
    return load_run(config_path(config), overrides)


def read_model(config: str | Path, overrides: Iterable[str] = ()) -> ModelConfig:
    """A model's configuration from a file or preset of a run or of a model alone."""
    return load_model_config(config_path(config), overrides)


def require_device(name: str) -> torch.device:
    """The device of that name.

    Raises:
        UnsupportedError: no such device here.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UnsupportedError(f"the device {name!r} cannot be used here.", where="device",
                               remedy="Use cpu, or see weft doctor for what this machine has.") from None
    return device


def require_dtype(name: str) -> torch.dtype:
    """The dtype of that name.

    Raises:
        InputError: none in which Weft computes.
    """
    if name not in DTYPES:
        raise InputError(f"unknown dtype {name!r}.", where="dtype", remedy=nearest(name, DTYPES))
    return DTYPES[name]


def load(path: Model, *, device: str = "cpu", dtype: str | None = None) -> Loaded:
    """A checkpoint's model and tokenizer.

    Args:
        path: the folder of a checkpoint, or of a run, whose last checkpoint is taken.
        device: where the model goes.
        dtype: cast the weights to float32, float64 or bfloat16; None keeps them.
    """
    place = require_device(device)
    loaded = path if isinstance(path, Loaded) else load_checkpoint(path, device=place)
    if dtype is not None:
        loaded.model.to(require_dtype(dtype))
    return loaded


def train(config: str | Path | RunConfig, overrides: Iterable[str] = (), *, out: str | Path = "runs/latest",
          resume: bool = False, device: str = "cpu", on_event: Callable[[Event], None] | None = None) -> TrainResult:
    """Train a run; see `weft.training.train`. A preset's name or a file's path stands for its configuration."""
    run = config if isinstance(config, RunConfig) else read_run(config, overrides)
    return train_run(run, out, resume=resume, device=require_device(device), on_event=on_event)


def check(target: Model | ModelConfig, *, seed: int = 0,
          on_law: Callable[[str, str], None] | None = None) -> CheckResult:
    """The laws on a configuration (file, preset or object) or a checkpoint."""
    found = _target(target)
    config, model = (found, None) if isinstance(found, ModelConfig) else (found.config, found.model)
    return check_laws(config, model, seed=seed, on_law=on_law)


def plan(target: Model | ModelConfig, *, context: int | None = None, batch: int = 1, dtype: str | None = None,
         tokens: int | None = None) -> Plan:
    """What a model costs before it runs, from a configuration (file, preset or object) or a checkpoint; see
    `weft.analysis.plan`."""
    found = _target(target)
    return plan_model(found if isinstance(found, ModelConfig) else found.model, context=context, batch=batch,
                      dtype=None if dtype is None else require_dtype(dtype), tokens=tokens)


def _target(target: Model | ModelConfig) -> ModelConfig | Loaded:
    """A configuration, or a checkpoint in memory.

    Raises:
        InputError: neither a file, a preset nor a folder.
    """
    if isinstance(target, ModelConfig | Loaded):
        return target
    if Path(target).is_dir():
        return load(target)
    if not Path(target).suffix and str(target) not in presets() and not Path(target).exists():
        raise InputError(f"{str(target)!r} is neither a file, a preset nor a checkpoint.", where="target",
                         remedy=f"{nearest(str(target), presets())} Or give the path of a YAML or JSON file, or of a "
                                "checkpoint's folder.")
    return read_model(target)


@dataclass(frozen=True)
class Ends:
    """When generation stops early: ``strings`` in the text; ``at_end``, the tokenizer's end-of-document token."""

    strings: tuple[str, ...] = ()
    at_end: bool = True


def generate(model: Model, prompts: Sequence[str | RowLike], *, max_new_tokens: int = 200, sampling: Sampling = GREEDY,
             ends: Ends | None = None, seed: int = 0, log_probs: bool = False) -> Generated:
    """Continue texts, or rows of ids; see `weft.decoding.generate`."""
    loaded = load(model)
    return continue_rows(loaded.model, prompt_rows(loaded, prompts), max_new_tokens=max_new_tokens, sampling=sampling,
                         ending=_ending(loaded.tokenizer, ends or Ends()), tokenizer=loaded.tokenizer,
                         start=_start(loaded.tokenizer), seed=seed, log_probs=log_probs)


def stream(model: Model, prompt: str | RowLike, *, max_new_tokens: int = 200, sampling: Sampling = GREEDY,
           ends: Ends | None = None, seed: int = 0) -> Iterable[NewToken]:
    """Like `generate` for one prompt, token by token."""
    loaded = load(model)
    return stream_rows(loaded.model, prompt_rows(loaded, [prompt]), max_new_tokens=max_new_tokens, sampling=sampling,
                       ending=_ending(loaded.tokenizer, ends or Ends()), tokenizer=loaded.tokenizer,
                       start=_start(loaded.tokenizer), seed=seed)


def score(model: Model, rows: Sequence[str | RowLike], *, logits: bool = False) -> Scored:
    """Log-probabilities of texts (from their document's start on) or rows of ids; see `weft.evaluation.score`."""
    loaded = load(model)
    texts = all(isinstance(row, str) for row in rows)
    start = _start(loaded.tokenizer) if texts else None
    return score_rows(loaded.model, prompt_rows(loaded, rows, open_text=False), start=start, logits=logits)


def evaluate(model: Model, data: str | Path | None = None, *, context: int | None = None, stride: int | None = None,
             mode: Mode = "windows", batch_size: int = 8) -> Evaluation:
    """Perplexity and bits per byte of a text, by default of what the model's run held out."""
    loaded = load(model)
    tokenizer = _tokenizer(loaded)
    if data is not None:
        corpus = read_text(data)
    elif loaded.run is not None:
        corpus = split_corpus(DataSettings.model_validate(loaded.run["data"]))[1]
    else:
        raise InputError("the checkpoint knows no run, so it has no text of its own.", where="data",
                         remedy="Give the path of a text.")
    return evaluate_stream(loaded.model, encode_corpus(corpus, tokenizer), context=context, stride=stride, mode=mode,
                           batch_size=batch_size)


def prompt_rows(loaded: Loaded, prompts: Sequence[str | RowLike], *, open_text: bool = True) -> list[RowLike]:
    """Texts encoded, behind their document's start symbol if the tokenizer has one; rows of ids as they are."""
    rows: list[RowLike] = []
    for prompt in prompts:
        if not isinstance(prompt, str):
            rows.append(prompt)
            continue
        tokenizer = _tokenizer(loaded)
        start = _start(tokenizer) if open_text else None
        rows.append(Row((*([] if start is None else [start]), *tokenizer.encode(prompt))))
    return rows


def _tokenizer(loaded: Loaded) -> Tokenizer:
    if loaded.tokenizer is None:
        raise InputError("the checkpoint has no tokenizer.", where=str(loaded.path),
                         remedy="Give rows of token ids instead of text.")
    return loaded.tokenizer


def _start(tokenizer: Tokenizer | None) -> int | None:
    """What opens a document: its start symbol, or else the symbol that ends the one before."""
    if tokenizer is None:
        return None
    return tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id


def _ending(tokenizer: Tokenizer | None, ends: Ends) -> Ending:
    end = None if tokenizer is None or not ends.at_end else tokenizer.eos_id
    if end is None and not ends.strings:
        return NEVER
    return Ending(tokens=() if end is None else (end,), strings=ends.strings)


__all__ = ["Description", "Diagnosis", "Ends", "Entry", "Loaded", "Plan", "Row", "Sampling", "UserError", "catalogue",
           "check", "config_schema", "describe", "doctor", "evaluate", "generate", "load", "load_plugin", "plan",
           "presets", "read_model", "read_run", "score", "stream", "train"]
