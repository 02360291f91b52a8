"""Benchmarks of a model on published data, and ratings of models from pairwise preferences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.api.models import Model, load
from weft.benchmarks import BenchmarkConfig, BenchmarkResult, Conditions, TextModel
from weft.benchmarks.lm_harness import PREFIX, run_harness
from weft.benchmarks.mbpp import no_consent
from weft.comparison.items import ItemDifference
from weft.comparison.items import compared_by_request as compared
from weft.comparison.ratings import BradleyTerry, Elo, GameFields, Ratings, Resampling, games_of, rated, read_games
from weft.comparison.ratings.games import Game
from weft.core.config import parse_part
from weft.core.errors import InputError
from weft.core.registry import REGISTRY
from weft.evaluation.completions import Progress


def benchmark(model: Model, task: str | Mapping[str, Any], data: str | Path | None = None, *,
              context: int | None = None, batch_size: int = 8, limit: int | None = None, run_programs: bool = False,
              run_code: Sequence[str | Path] = (), device: str = "cpu", dtype: str | None = None,
              progress: Progress | None = None) -> BenchmarkResult:
    """Measure a model on a benchmark: ``mmlu``, ``lambada``, ``sst2``, ``cola``, ``mbpp``, one of a plugin, or a task
    of lm-eval.

    Args:
        model: the checkpoint, with a tokenizer; any language model, and for sst2 and cola also a classifier of two
            classes.
        task: its kind, or its fields with the kind; ``lm-eval:NAME`` for a task of lm-eval.
        data: file or folder in the benchmark's format; for a task of lm-eval a folder of tasks in its YAML, if the task
            is none of its own.
        context: the most tokens of a row; None: the model's own context. Longer prompts are cut on the left.
        batch_size: rows that run together; it does not change the results.
        limit: use only so many requests of each part; None: all.
        run_programs: whether programs that the model writes may be run; see `weft.benchmarks.programs` for what
            confines them.
        run_code: files of Python, or folders of them, which tasks of lm-eval in ``data`` name (``!function``) and may
            run, unconfined.
        device: the device to load the model to.
        dtype: cast the weights to float32, float64 or bfloat16; None keeps their dtypes.
        progress: told how many of how many requests are done.

    Raises:
        ConfigError: no such benchmark, or its fields do not fit.
        InputError: no data, no consent, or a request does not fit into the context.
        DataError: the data cannot be read; ``where`` names file and line.
        UnsupportedError: the model cannot answer.
        MissingExtra: a task of lm-eval, and the package is not installed.
    """
    conditions, name = Conditions(limit, run_programs, tuple(map(Path, run_code))), harness_name(task)
    config = None if name is not None else benchmark_of(task)
    if config is not None and config.runs_programs and not run_programs:
        raise no_consent(config.kind)
    if config is not None and data is None:
        raise InputError(f"{config.kind} needs its data.", where="data", remedy="Give its file or folder (--data).")
    asked = TextModel(load(model, device=device, dtype=dtype), context=context, batch_size=batch_size,
                      progress=progress)
    path = None if data is None else Path(data)
    if config is None or path is None:
        return run_harness(asked, str(name), path, conditions)
    return config.measure(asked, path, conditions)


def compared_by_request(results: Sequence[BenchmarkResult], *, seed: int = 0) -> tuple[ItemDifference, ...]:
    """Compare every two models that were asked the same requests of a benchmark: McNemar's exact test, an interval from
    a paired bootstrap over requests, and p-values after Holm's correction.

    Args:
        results: of `benchmark`, of two models or more.
        seed: of the bootstrap.

    Raises:
        InputError: fewer than two results, other requests, or a benchmark that does not mark each request.
    """
    return compared(results, seed=seed)


def harness_name(task: str | Mapping[str, Any]) -> str | None:
    """The name of a task of lm-eval, which ``task`` names as ``lm-eval:NAME``; None for others."""
    kind = task if isinstance(task, str) else task.get("kind")
    return kind.removeprefix(PREFIX) if isinstance(kind, str) and kind.startswith(PREFIX) else None


def benchmark_of(task: str | Mapping[str, Any]) -> BenchmarkConfig:
    """The configuration of a benchmark.

    Raises:
        ConfigError: no such benchmark; the error names the nearest by meaning. Or its fields do not fit.
    """
    found = parse_part((BenchmarkConfig.group,), task if isinstance(task, str) else dict(task))
    assert isinstance(found, BenchmarkConfig), "the group holds nothing else"
    return found


def is_benchmark(task: str | Mapping[str, Any] | None) -> bool:
    """Whether ``task`` names a benchmark or a task of lm-eval, and not a task on rows with answers.

    Raises:
        InputError: it names neither; the error names the nearest by meaning.
    """
    kind = task if isinstance(task, str) else (task or {}).get("kind")
    if not isinstance(kind, str):
        return False
    if harness_name(kind) is not None:
        return True
    groups = (BenchmarkConfig.group, "task")
    try:
        return REGISTRY.get(groups, kind).group == BenchmarkConfig.group
    except KeyError as error:
        what, _, hint = str(error.args[0]).partition(". ")
        raise InputError(f"{what}.", where="task", remedy=f"{hint} {PREFIX}NAME is a task of lm-eval.") from None


def rate(games: str | Path | Iterable[Game], method: Elo | BradleyTerry | None = None, *,
         fields: GameFields | None = None, resampling: Resampling | None = None) -> Ratings:
    """Rate models by games between two of them, each won by one or tied.

    Args:
        games: a CSV, TSV or JSONL file; or triples of two names and the winner, which is one of the names, a word that
            files may hold (see `weft.comparison.ratings.games.WORDS`), or None for a tie.
        method: with its numbers; None: `BradleyTerry`.
        fields: of the file, see `GameFields`.
        resampling: of the games, for the intervals; None: 1,000 samples.

    Raises:
        DataError: the file or a game cannot be read; Bradley-Terry's likelihood has no maximum.
        InputError: fields are named and the games are no file.
    """
    if isinstance(games, str | Path):
        found = read_games(games, fields)
    elif fields is not None:
        raise InputError("fields are those of a file, and these games are triples.", where="fields",
                         remedy="Leave them out.")
    else:
        found = games_of(games)
    return rated(found, BradleyTerry() if method is None else method,
                 Resampling() if resampling is None else resampling)
