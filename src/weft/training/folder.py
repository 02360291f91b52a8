"""The run folder: what was run, what was measured, and its checkpoints.

    run.json               the resolved configuration, the number of steps, hashes of text and tokenizer, the machine
    metrics.jsonl          one JSON object per event
    checkpoints/<step>/    the last and the best
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from torch import Tensor

from weft.checkpoints.atomic import tidy, write_file
from weft.checkpoints.layout import CONFIG_FILE, RUN_CHECKPOINTS, step_name
from weft.checkpoints.locate import saved_checkpoints
from weft.checkpoints.save import save_checkpoint
from weft.core.errors import CheckpointError, ConfigError
from weft.core.model import LanguageModel
from weft.tokenizers import Tokenizer
from weft.training.config import RunConfig
from weft.training.events import Event

RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
LOCK_FILE = ".lock"


@final
class RunFolder:
    """A run folder that this process alone writes to, from ``with`` to its end.

    Args:
        path: made if need be.
        resume: whether a run that stands there goes on; otherwise there must be none.

    Raises:
        ConfigError: another run stands there, or none to resume, or another process is writing.
    """

    def __init__(self, path: str | Path, *, resume: bool) -> None:
        self.path = Path(path)
        has_run = (self.path / RUN_FILE).exists()
        if has_run and not resume:
            raise ConfigError([f"out: {self.path} holds a run already. Go on with --resume, or choose another folder."])
        if resume and not has_run:
            raise ConfigError([f"out: there is no run to resume in {self.path}. Check the folder, or leave --resume "
                               "out."])

    def __enter__(self) -> RunFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.path / LOCK_FILE)
        except OSError as error:
            raise ConfigError([f"out: the folder {self.path} cannot be written to ({error.strerror}). Choose another "
                               "folder."]) from None
        for place in (self.path, self.path / RUN_CHECKPOINTS):
            tidy(place)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def read(self) -> dict[str, Any]:
        """What `describe` wrote.

        Raises:
            CheckpointError: the file is damaged.
        """
        path = self.path / RUN_FILE
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"the file is damaged ({error}).", where=str(path),
                                  remedy="Start the run again in another folder.") from None
        return content

    def describe(self, content: Mapping[str, Any]) -> None:
        """Write what the run is, before its first step."""
        write_file(self.path / RUN_FILE, json.dumps(content, indent=1) + "\n")

    def log(self, event: Event) -> None:
        """Add an event to the metrics."""
        with (self.path / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(event.record()) + "\n")

    def forget_after(self, step: int) -> None:
        """Drop the metrics of steps after ``step``, which will be done again, and a line that was cut off."""
        path = self.path / METRICS_FILE
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            write_file(path, "".join(f"{line}\n" for line in lines if _belongs(line, step)))

    def last(self) -> Path | None:
        """The newest checkpoint."""
        saved = saved_checkpoints(self.path)
        return saved[-1] if saved else None

    def save(self, model: LanguageModel, tokenizer: Tokenizer, config: RunConfig, facts: Mapping[str, Any],
             training: Mapping[str, Tensor]) -> Path:
        """Write the checkpoint of ``facts["step"]``, then delete all but the last and the best."""
        path = self.path / RUN_CHECKPOINTS / step_name(int(facts["step"]))
        save_checkpoint(path, model, tokenizer, run=config.dump(), facts=facts, training=training)
        saved = saved_checkpoints(self.path)
        for old in set(saved[:-1]) - {best_of(saved)}:
            shutil.rmtree(old)
        return path

    def best(self) -> Path | None:
        """The checkpoint with the fewest bits per byte on the validation text."""
        return best_of(saved_checkpoints(self.path))


def best_of(saved: list[Path]) -> Path | None:
    """The one with the fewest bits per byte among those that were evaluated; the earliest of equals."""
    scores = {path: _bits_per_byte(path) for path in saved}
    scored = {path: score for path, score in scores.items() if score is not None}
    return min(scored, key=scored.__getitem__) if scored else None


def require_same_run(before: Mapping[str, Any], now: Mapping[str, Any], *, where: str) -> None:
    """Refuse to resume a run with another configuration.

    Raises:
        ConfigError: listing every key whose value differs.
    """
    problems = [f"{path}: {new!r}, and the run began with {old!r}." for path, old, new in _differences(before, now, "")]
    if problems:
        raise ConfigError([*problems, "Resume with the configuration of the run, or start one in another folder."],
                          where=where)


def _differences(old: Any, new: Any, path: str) -> list[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = sorted(set(old) | set(new))
        return [found for key in keys
                for found in _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [found for index, pair in enumerate(zip(old, new, strict=True))
                for found in _differences(*pair, f"{path}.{index}")]
    return [] if old == new else [(path, old, new)]


def _bits_per_byte(path: Path) -> float | None:
    facts = json.loads((path / CONFIG_FILE).read_bytes()).get("facts") or {}
    validation = facts.get("validation")
    return None if validation is None else float(validation["bits_per_byte"])


def _belongs(line: str, step: int) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and int(record.get("step", 0)) <= step


def _lock(path: Path) -> int:
    """Hold the folder for this process; the system lets go of it however the process ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise ConfigError([f"out: another process is training in {path.parent}. Wait for it, or choose another "
                               "folder."]) from None
    return handle
