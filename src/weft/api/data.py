"""Prepared data: text that is tokenised once, before training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from weft.api.configs import preset_hint, presets, read_config, read_run
from weft.core.config import parse, parse_part
from weft.core.errors import ConfigError, DataError, InputError, nearest
from weft.data.inspection import Inspection, SampleWindow, inspect_data, sample_data
from weft.data.mixed_batches import mixture_of
from weft.data.mixture import PUBLISHED, MixturePlan, MixtureSettings, own_mixture, plan_mixture
from weft.data.prepared import OnProgress, open_prepared
from weft.tasks.conversations import ConversationConfig
from weft.tokenizers.config import ByteTokenizerConfig, TokenizerConfig
from weft.training.config import DEFAULT_STEPS, DataSettings, RunConfig
from weft.training.files import read_plain
from weft.training.filling import task_of
from weft.training.material import Preparation, prepare, prepare_folder
from weft.training.overrides import run_overrides
from weft.training.sources import plan_sources
from weft.training.starting import with_start


def data_prepare(source: str | Path, overrides: Iterable[str] = (), *, out: str | Path, tokenizer: str | None = None,
                 replace: bool = False, on_progress: OnProgress | None = None) -> Preparation:
    """Tokenise a text once, into a folder that runs read as ``data.path``.

    Args:
        source: a configuration (file or preset), whose ``data`` and ``tokenizer`` sections are used, and ``task`` and
            ``start`` if the task is one on conversations; or a text.
        overrides: ``data.key=value``, ``tokenizer.key=value`` and ``task.key=value`` changes.
        out: the folder; an existing one is reused if it was made from the same text in the same way.
        tokenizer: a kind, a mapping in YAML, or the path of a tokenizer.json. None: the configuration's tokenizer, or
            bytes if it has none.
        replace: prepare the text again even if the folder could be reused.
        on_progress: called after each batch of documents.
    """
    settings, encoder, task = _data_sections(source, list(overrides), tokenizer)
    return prepare_folder(settings, encoder, out, replace=replace, on_progress=on_progress, task=task)


def data_inspect(folder: str | Path, *, verify: bool = False) -> Inspection:
    """Return statistics of a folder that `data_prepare` wrote.

    Args:
        folder: the folder.
        verify: compare every byte of the shards with the manifest, and the source files with their recorded hashes.

    Raises:
        DataError: the folder is damaged or, with ``verify``, a source file has changed. A missing source file is no
            error.
    """
    inspection = inspect_data(open_prepared(folder, check="full" if verify else "sample"), verified=verify)
    changed = [path for path, how in (inspection.changed_sources or {}).items() if how == "changed"]
    if changed:
        raise DataError(f"the text has changed since it was prepared: {', '.join(changed)}.", where=str(folder),
                        remedy="Prepare it again with --replace, or put the text back.")
    return inspection


def data_sample(folder: str | Path, part: str = "train", *, windows: int = 3, context: int = 128,
                seed: int = 0) -> list[SampleWindow]:
    """Sample windows of a folder that `data_prepare` wrote; see `weft.data.inspection.sample_data`."""
    return sample_data(open_prepared(folder), part, windows=windows, context=context, seed=seed)


def data_mixture(source: str | Path = "gpt3", *, target: float | None = None,
                 max_epochs: float | None = None) -> MixturePlan:
    """The tokens and epochs of every source that a mixture is expected to read.

    Args:
        source: ``gpt3``, ``pile`` or ``dolma``, as published; or a YAML or JSON file with ``sources`` (of each name its
            ``tokens`` and ``weight``), and, if wanted, ``target`` and ``max_epochs``.
        target: what is read in all, in the mixture's unit; None: what the table or file says.
        max_epochs: cap on the epochs of every source; see `weft.data.mixture.plan_mixture`.

    Raises:
        ConfigError: the file is wrong.
        InputError: no such mixture; or as `weft.data.mixture.plan_mixture`.
    """
    if str(source) in PUBLISHED:
        return plan_mixture(PUBLISHED[str(source)], target, max_epochs)
    if Path(source).suffix not in (".yaml", ".yml", ".json"):
        raise InputError(f"{str(source)!r} is neither a published mixture nor a YAML or JSON file.", where="source",
                         remedy=nearest(str(source), PUBLISHED))
    settings = parse(MixtureSettings, read_plain(source), where=str(source))
    return plan_mixture(own_mixture(settings, str(source)), target, max_epochs)


def data_sources(target: str | Path, overrides: Iterable[str] = (), *,
                 tokens: float | None = None) -> MixturePlan | None:
    """The tokens and epochs that a run is expected to read of each of its sources. The data are read for it, and texts
    tokenised.

    Args:
        target: a run's configuration, a file or preset.
        overrides: ``key.path=value`` changes to it.
        tokens: that the run reads; None: by its steps or its budget in tokens.

    Returns:
        None for a run without ``data.sources``, and for what is no run's configuration.

    Raises:
        InputError: the run has another budget and no ``tokens`` are given; or the caps are below them.
        DataError: a source cannot be used.
        ConfigError: the configuration is wrong, or ``data.when_capped`` refuses a cap.
    """
    named = Path(target).suffix or str(target) in presets()
    if not named or not isinstance(read_config(target).get("data"), Mapping):
        return None
    run = read_run(target, overrides)
    if run.data.sources is None:
        return None
    training = run.training
    if tokens is None and any(budget is not None for budget in (training.seconds, training.flops, training.epochs)):
        raise InputError("the budget of the run is not in tokens or steps, so the epochs of its sources are not known.",
                         where="data.sources", remedy="Give --tokens.")
    task = run.made_task()
    mixed = mixture_of(task.batches(prepare(run).train))
    assert mixed is not None, "a run with sources has batches of them"
    steps = training.steps or DEFAULT_STEPS
    by_steps = steps * training.accumulation * mixed.tokens_per_batch
    return plan_sources(mixed, tokens or training.tokens or by_steps)


def _data_sections(source: str | Path, overrides: list[str],
                   tokenizer: str | None) -> tuple[DataSettings, TokenizerConfig, ConversationConfig | None]:
    """Return the data and tokenizer sections of a source, with its changes applied, and its task if that is one on
    conversations."""
    outside = [text for text in overrides if not text.startswith(("data.", "tokenizer.", "tokenizer=", "task.",
                                                                  "task="))]
    if outside:
        raise ConfigError([f"{text}: only data, tokenizer and task can be changed when data is prepared. Leave it out."
                           for text in outside])
    plain = _plain_sections(source)
    if tokenizer is not None and Path(tokenizer).exists():
        plain["tokenizer"] = {"kind": "file", "path": tokenizer}
    elif tokenizer is not None:
        overrides = [f"tokenizer={tokenizer}", *overrides]
    plain = run_overrides(plain, overrides)
    encoder = parse_part(("tokenizer",), plain["tokenizer"])
    assert isinstance(encoder, TokenizerConfig), "the group tokenizer holds tokenizer configurations"
    task = task_of(plain)
    return parse(DataSettings, plain["data"]), encoder, task if isinstance(task, ConversationConfig) else None


def _plain_sections(source: str | Path) -> dict[str, Any]:
    path, usual = Path(source), {"data": {}, "tokenizer": ByteTokenizerConfig.kind}
    if path.suffix in (".yaml", ".yml", ".json") or (not path.exists() and str(source) in presets()):
        plain = read_config(source)
        unknown = [] if "kind" in plain else sorted(set(plain) - set(RunConfig.model_fields))
        if unknown:
            raise ConfigError([f"{key}: unknown key {key!r}. {nearest(key, RunConfig.model_fields)}"
                               for key in unknown], where=str(source))
        plain = with_start(plain) if "start" in plain else plain
        return usual | {key: plain[key] for key in (*usual, "task") if key in plain}
    if not path.exists():
        raise InputError(f"{str(source)!r} is neither a text, a configuration nor a preset.", where="source",
                         remedy=f"Check the path. {preset_hint(str(source))}")
    return usual | {"data": {"path": str(source)}}
