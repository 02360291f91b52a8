"""The run folder: configuration, metrics and checkpoints of a run.

    run.json               the resolved configuration, the number of steps, hashes of text and tokenizer, the machine
    config.yaml            the resolved configuration, to read and to run again
    metrics.jsonl          one JSON object per event, see `weft.core.strict_json` for what is not finite
    reference.json         of a run on preferences, see `weft.training.reference`
    checkpoints/<step>/    the last, the best, and as many more as ``report.keep`` sets
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from torch import Tensor

from weft.checkpoints.layout import CONFIG_FILE, RUN_CHECKPOINTS, RUN_ID, step_name
from weft.checkpoints.layout import RUN_FILE as RUN_FILE
from weft.checkpoints.locate import foreign_checkpoints, in_the_way, run_id, saved_checkpoints, step_folders
from weft.checkpoints.save import Describe, describe_checkpoint, save_checkpoint
from weft.core.errors import ConfigError, TrainingError
from weft.core.model import Model
from weft.core.strict_json import dumps
from weft.disk.atomic import discard, free_bytes, made, tidy, write_file
from weft.disk.documents import read_json
from weft.disk.lock import LOCK_FILE, WorkFolder, held
from weft.disk.ownership import by_manifest, enumerated
from weft.tasks import Validation
from weft.tokenizers import Tokenizer
from weft.training.config import RunConfig
from weft.training.events import Event
from weft.training.records import read_metrics, read_run_file

CONFIG_YAML = "config.yaml"
METRICS_FILE = "metrics.jsonl"
REFERENCE_FILE = "reference.json"
START_FOLDER = "start"
"""Where a model in memory is saved that a run starts from, before the run begins."""
LAYOUT = WorkFolder("run", RUN_FILE, (CONFIG_YAML, METRICS_FILE, REFERENCE_FILE, RUN_CHECKPOINTS), (START_FOLDER,))


class RunFolder:
    """A run folder, locked inside ``with`` so that no other process writes to it.

    Args:
        path: created if it does not exist.
        resume: whether the run in the folder goes on; otherwise there must be none.
        writes: False on a rank whose folder rank 0 writes; it neither checks nor changes anything.

    Raises:
        ConfigError: the folder holds another run, or none to resume, or another process is writing to it.
        CheckpointError: the record of the run to resume is damaged.
    """

    def __init__(self, path: str | Path, *, resume: bool, writes: bool = True) -> None:
        self.path, self._resume, self._writes = Path(path), resume, writes
        self._stack = ExitStack()
        if writes:
            self._require_fitting()

    def __enter__(self) -> RunFolder:
        if not self._writes:
            return self
        try:
            with ExitStack() as stack:
                stack.enter_context(made(self.path))
                stack.enter_context(held(self.path, "training"))
                for place in (self.path, self.path / RUN_CHECKPOINTS):
                    tidy(place)
                self._require_fitting()  # again, since another process may have written before this one had the lock
                self._stack = stack.pop_all()
        except OSError as error:
            raise ConfigError([f"out: the folder {self.path} cannot be written to ({error.strerror}). Choose another "
                               "folder."]) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def has_run(self) -> bool:
        """Whether the folder holds a run. The folder of a run that was killed before its first step may not."""
        return os.path.lexists(self.path / RUN_FILE)

    def _require_fitting(self) -> None:
        if self.has_run and not self._resume:
            raise ConfigError([f"out: {self.path} holds a run already. Go on with --resume, or choose another folder."])
        if self._resume and not self.has_run and not (self.path / LOCK_FILE).exists():
            raise ConfigError([f"out: there is no run to resume in {self.path}. Check the folder, or leave --resume "
                               "out."])
        LAYOUT.require_room(self.path)
        if self.has_run:
            self.read()  # by whose id the checkpoints are told from those of another run
        if found := [path.name for path in foreign_checkpoints(self.path)]:
            raise ConfigError([f"out: {self.path / RUN_CHECKPOINTS} holds {enumerated(found)} of another run than "
                               f"the one in {RUN_FILE}. Move them away, or choose another folder."])

    def read(self) -> dict[str, Any]:
        """The content that `describe` wrote. Raises `CheckpointError`: the file is damaged."""
        return read_run_file(self.path / RUN_FILE)

    def describe(self, content: Mapping[str, Any]) -> None:
        """Write the description of the run before its first step. From then on the folder holds a run."""
        with writing(self.path / RUN_FILE):
            before = self._readable(self.read()) if self.has_run else None
            write_file(self.path / RUN_FILE, dumps(content, indent=1) + "\n")
            self._complete(content, before)

    def complete(self) -> None:
        """Write the files of `describe` that are missing because the process was killed in it."""
        with writing(self.path / CONFIG_YAML):
            self._complete(self.read(), None)

    def _complete(self, content: Mapping[str, Any], before: str | None) -> None:
        """Write config.yaml, unless the user has edited it: its text is no longer ``before``."""
        path = self.path / CONFIG_YAML
        if not os.path.lexists(path) or (before is not None and path.read_text("utf-8", "replace") == before):
            write_file(path, self._readable(content))

    @staticmethod
    def _readable(content: Mapping[str, Any]) -> str:
        return yaml.safe_dump(content["config"], sort_keys=False, allow_unicode=True)

    def log(self, event: Event) -> None:
        """Add an event to the metrics. Raises `TrainingError`: they cannot be written."""
        with writing(self.path / METRICS_FILE), (self.path / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(dumps(event) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The records of all events; an incomplete last line is left out. Raises `CheckpointError`: the file holds
        something else too."""
        return read_metrics(self.path / METRICS_FILE)

    def forget_after(self, step: int) -> None:
        """Delete the metrics of steps after ``step``, which will be repeated, and an incomplete line."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        with writing(self.path / METRICS_FILE):
            write_file(self.path / METRICS_FILE, "".join(f"{dumps(record)}\n" for record in kept))

    def last(self) -> Path | None:
        """The newest checkpoint; None: there is none."""
        saved = saved_checkpoints(self.path)
        return saved[-1] if saved else None

    def steps(self) -> list[Path]:
        """The folders of all checkpoints, damaged ones too, in the order of their steps."""
        return step_folders(self.path)

    def require_places(self, steps: int) -> None:
        """Refuse what stands where a checkpoint of a later step than the last one's is to be saved. Raises
        `ConfigError`: naming it."""
        last = self.last()
        if found := in_the_way(self.path, 0 if last is None else int(last.name), steps):
            raise ConfigError([f"out: {found[0].parent} holds {enumerated([path.name for path in found])}, where this "
                               "run may save a checkpoint, and nothing proves that Weft wrote it. Move it away, or "
                               "choose another folder."])

    def put_aside(self, damaged: Path) -> Path:
        """Rename a damaged checkpoint to a name that is not that of a step, and return its new path."""
        names = (f"damaged-{damaged.name}{suffix}" for suffix in ("", *(f"-{count}" for count in range(2, 1000))))
        aside = next(path for name in names if not (path := damaged.parent / name).exists())
        with writing(self.path / damaged.name):
            os.rename(damaged, aside)
        return aside

    def save(self, model: Model, tokenizer: Tokenizer, config: RunConfig, facts: Mapping[str, Any],
             training: Mapping[str, Tensor]) -> Path:
        """Write the checkpoint of ``facts["step"]``, then `prune` with ``report.keep``. Raises `OccupiedError`: its
        path is taken by something that is no checkpoint of this run."""
        path = self.place(int(facts["step"]))
        save_checkpoint(path, model, tokenizer, run=config.dump(), facts={**facts, RUN_ID: run_id(self.path)},
                        training=training, replace=True)
        self.prune(config.report.keep)
        return path

    def place(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.path / RUN_CHECKPOINTS / step_name(step)

    def describing(self, model: Model, tokenizer: Tokenizer, config: RunConfig, facts: Mapping[str, Any]) -> Describe:
        """A function that writes all files of a checkpoint but tensors and manifest, for
        `weft.training.together.saving`."""
        return lambda draft: describe_checkpoint(draft, model, tokenizer, run=config.dump(),
                                                 facts={**facts, RUN_ID: run_id(self.path)})

    def prune(self, keep: int) -> None:
        """Delete all checkpoints but the last, the best, and the newest ``keep`` others. A folder that was changed
        since it was saved is not deleted."""
        saved = saved_checkpoints(self.path)
        for old in saved[: -1 - keep]:
            if old != best_of(saved) and not by_manifest(old):
                discard(old)

    def best(self) -> Path | None:
        """The checkpoint that is best on the held-out data by the task's criterion; None: none was evaluated."""
        return best_of(saved_checkpoints(self.path))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An error of the system while a run writes one of its files, such as a full disk, as one for the user. Raises
    `TrainingError`: there was one."""
    try:
        yield
    except OSError as error:
        raise TrainingError(f"the file cannot be written ({error.strerror or error}); {free_bytes(path):,} bytes are "
                            "free there.", where=str(path), remedy="Free space, then go on with --resume.") from error


def best_of(saved: list[Path]) -> Path | None:
    """The best of the evaluated checkpoints by their task's criterion; the earliest of equals."""
    scores = {path: _cost(path) for path in saved}
    scored = {path: score for path, score in scores.items() if score is not None}
    return min(scored, key=scored.__getitem__) if scored else None


def require_same_run(before: Mapping[str, Any], now: Mapping[str, Any], *, where: str) -> None:
    """Refuse to resume a run with another configuration. Raises `ConfigError`: listing every key whose value
    differs."""
    problems = [f"{path}: {new!r}, and the run began with {old!r}." for path, old, new in differences(before, now)]
    if problems:
        raise ConfigError([*problems, "Resume with the configuration of the run, or start one in another folder."],
                          where=where)


def differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Where two configurations differ, as plain data: path, old value, new value."""
    if old == new:
        return []
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = sorted(set(old) | set(new))
        return [found for key in keys
                for found in differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [found for index, pair in enumerate(zip(old, new, strict=True))
                for found in differences(*pair, f"{path}.{index}")]
    return [(path, old, new)]


def _cost(path: Path) -> float | None:
    """The criterion of a checkpoint, lower is better; None if it was not evaluated or is damaged."""
    try:
        return Validation.from_json(read_json(path / CONFIG_FILE)["facts"]["validation"]).cost
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
