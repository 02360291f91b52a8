"""Configurations from YAML or JSON files, with overrides, and with the tokenizer's vocabulary size filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.model import MODELS, ModelConfig, parse_model
from weft.core.registry import REGISTRY
from weft.disk.documents import Unreadable, read_document
from weft.disk.yaml_documents import MOST_YAML_BYTES, parse_yaml
from weft.training.config import RunConfig
from weft.training.filling import task_of, tokenizer_of, vocab_size_of, with_labels
from weft.training.material import with_prepared
from weft.training.overrides import apply_overrides, run_overrides
from weft.training.starting import begun_from, with_start

SIZES = (7, 10**9)
"""Two implausible vocabulary sizes, for which no rule about sizes gives the same message."""


def load_run(path: str | Path, overrides: Iterable[str] = (), *, start: str | Path | None = None) -> RunConfig:
    """The run that a YAML or JSON file describes; a file that holds only a model is a run with defaults for the rest.

    Args:
        overrides: ``key.path=value``, see `apply_overrides`.
        start: the folder of a checkpoint, whose model and tokenizer take the place of the file's, see
            `weft.training.starting.begun_from`; None: the file's own.

    Raises:
        ConfigError: the file is missing or no YAML, or the configuration is wrong.
    """
    plain = read_plain(path)
    return parse_run(plain if start is None else begun_from(plain, start), overrides, where=str(path))


def load_model_config(path: str | Path, overrides: Iterable[str] = ()) -> ModelConfig:
    """The model of a file, which describes a run or only a model; in the latter, overrides are relative to the model.
    Raises `ConfigError`: as `load_run`."""
    return parse_model_config(read_plain(path), overrides, where=str(path))


def parse_model_config(data: dict[str, Any], overrides: Iterable[str] = (), *, where: str | None = None) -> ModelConfig:
    """`load_model_config` of plain data. Raises `ConfigError`: listing every problem."""
    if "kind" not in data:
        return parse_run(data, overrides, where=where).model
    filled = _with_vocabulary({"model": apply_overrides(data, overrides)}, where)
    return parse_model(filled["model"], where=where)


def parse_run(data: Mapping[str, Any], overrides: Iterable[str] = (), *, where: str | None = None) -> RunConfig:
    """The run that plain data describes. A model without ``vocab_size`` takes its tokenizer's. Raises `ConfigError`:
    listing every problem."""
    plain = {"model": dict(data)} if "kind" in data else dict(data)
    begun = with_labels(with_prepared(with_start(run_overrides(plain, overrides))))
    return parse(RunConfig, _with_vocabulary(begun, where), where=where)


def read_plain(path: str | Path) -> dict[str, Any]:
    """A YAML or JSON file as plain data. Raises `ConfigError`: missing, no regular file, not YAML (with the line), a
    key given twice, beyond the limits of `weft.disk.yaml_documents`, or not a mapping."""
    file = Path(path)
    try:
        text = read_document(file, most=MOST_YAML_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError([f"the file cannot be read ({reason}). Give the path of a YAML or JSON file."],
                          where=str(file)) from None
    try:
        data = parse_yaml(text)
    except Unreadable as error:
        raise ConfigError([f"{error}. Correct the file."], where=str(file)) from None
    if not isinstance(data, dict):
        found = "nothing" if data is None else f"a {type(data).__name__}"
        raise ConfigError([f"a configuration is a mapping of keys to values, the file holds {found}. "
                           "Begin with `model:`."], where=str(file))
    return data


def _require_sound(plain: Mapping[str, Any], model: Mapping[str, Any], where: str | None) -> None:
    """Refuse a configuration that is wrong for every vocabulary size, before a text is read to learn the size. Raises
    `ConfigError`: with the problems that two unlike sizes have in common."""
    first, second = (_problems({**plain, "model": _of_vocabulary(model, size)}) for size in SIZES)
    if common := [problem for problem in first if problem in second]:
        raise ConfigError(common, where=where)


def _problems(plain: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        parse(RunConfig, plain)
    except ConfigError as error:
        return error.problems
    return ()


def _with_vocabulary(plain: dict[str, Any], where: str | None) -> dict[str, Any]:
    """Fill in ``model.vocab_size`` where it is left out. Other problems are left for parsing to report."""
    model = plain.get("model")
    if isinstance(model, str):
        model = {"kind": model}
    if not isinstance(model, dict) or not _lacks_vocabulary(model) or not _reads_tokens(model):
        return plain
    return {**plain, "model": _of_vocabulary(model, _vocab_size(plain, model, where))}


def _lacks_vocabulary(model: Mapping[str, Any]) -> bool:
    encoder = model.get("encoder")
    return "vocab_size" not in model or (isinstance(encoder, Mapping) and "vocab_size" not in encoder)


def _reads_tokens(model: Mapping[str, Any]) -> bool:
    """Whether a model of this kind reads tokens; true for an unknown kind, which parsing reports."""
    known = {part.kind: part for group in MODELS for part in REGISTRY.parts(group)}
    part = known.get(str(model.get("kind")))
    return part is None or not issubclass(part, ModelConfig) or part.reads_tokens


def _of_vocabulary(model: Mapping[str, Any], size: int) -> dict[str, Any]:
    """The model, and its encoder if it has one, with this vocabulary size where none is given."""
    encoder = model.get("encoder")
    sides = {"encoder": {"vocab_size": size, **encoder}} if isinstance(encoder, Mapping) else {}
    return {"vocab_size": size, **model, **sides}


def _vocab_size(plain: Mapping[str, Any], model: Mapping[str, Any], where: str | None) -> int:
    try:
        learned = tokenizer_of(plain).known_vocab_size() is None
        task_of(plain)
    except ConfigError:
        return 1  # parsing the whole reports the problem of the tokenizer or the task; any size will do for the model
    if learned:
        _require_sound(plain, model, where)
    return vocab_size_of(plain)
