"""The study's folder: one study, one writer, everything found so far.

    study.yaml             the study as it was stated, with every default
    study.json             what decides its results, with its hash; when it began, what was added when, and every look
    settled.json           what was chosen by measuring, once for all runs
    configs/NAME.yaml      each model's run, resolved: widths solved, steps settled, learning rate chosen
    data/tokens            the text as tokens, made once
    data/tuning, test      the held-out text, a file for each document
    pace/, trials/, runs/  a folder for each piece of work
    result.json            what was found
    report.html            the same as a page
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, final

import yaml

from weft.comparison.growth import Addition, EarlierFigure, growth
from weft.comparison.looks import Look, share_of
from weft.comparison.report import render
from weft.comparison.study import KnownStudy
from weft.comparison.study_result import StudyResult
from weft.comparison.verdict import disagreement
from weft.core.errors import CheckpointError, ConfigError, InputError, UserError
from weft.core.strict_json import build, digest, dumps
from weft.disk import documents
from weft.disk.atomic import discard, made, tidy, write_file
from weft.disk.lock import WorkFolder, held
from weft.disk.ownership import require_free

STATED, IDENTITY, SETTLED, RESULT, REPORT = "study.yaml", "study.json", "settled.json", "result.json", "report.html"
LAYOUT = WorkFolder("study", IDENTITY, (STATED, SETTLED, RESULT, REPORT, "configs", "data", "pace", "trials", "runs"))
SIGNATURE = re.compile(r"<!-- weft (?P<sha256>[0-9a-f]{64}) -->\n")
"""Ends a report: the hash of all before it, which proves that the page is as Weft wrote it."""


def known_study(path: Path) -> KnownStudy:
    """The models and the number of runs of each of the study in a folder; none where there is no study. Raises
    `CheckpointError`: its file cannot be read."""
    file = path / IDENTITY
    resolved = read_json(file).get("resolved") if file.is_file() else None
    runs, study = (resolved.get(key) if isinstance(resolved, Mapping) else None for key in ("runs", "study"))
    seeds = study.get("seeds") if isinstance(study, Mapping) else None
    return KnownStudy(frozenset(runs) if isinstance(runs, Mapping) else frozenset(),
                      len(seeds) if isinstance(seeds, list) else 0)


@final
class StudyFolder:
    """A study's folder that this process alone writes to, from ``with`` to its end.

    Args:
        path: made if need be.
        stated: the study as plain data.
        resolved: everything that decides its results, as plain data.

    Raises:
        ConfigError: another study stands there, the folder cannot be written to, or another process is at work in it.
    """

    def __init__(self, path: Path, stated: Mapping[str, Any], resolved: Mapping[str, Any]) -> None:
        self.path = path
        self.text = yaml.safe_dump(dict(stated), sort_keys=False, allow_unicode=True)
        self.resolved = json.loads(json.dumps(dict(resolved)))
        self.sha256 = digest(resolved)
        self.started = now()
        self.additions: tuple[Addition, ...] = ()
        self.looks: tuple[Look, ...] = ()
        self.planned = int(stated.get("planned_runs") or len(stated["seeds"]))
        self._begun_before = True
        self._stack = ExitStack()

    def __enter__(self) -> StudyFolder:
        LAYOUT.require_room(self.path)
        with ExitStack() as stack:
            try:
                stack.enter_context(made(self.path))
                stack.enter_context(held(self.path, "comparing models"))
            except OSError as error:
                raise ConfigError([f"out: the folder {self.path} cannot be written to ({error.strerror}). Choose "
                                   "another folder."]) from None
            self._enter()
            self._stack = stack.pop_all()
        return self

    def _enter(self) -> None:
        for place in (self.path, self.path / "configs"):
            tidy(place)
        known = self.path / IDENTITY
        if not known.exists():
            LAYOUT.require_room(self.path)  # once more, for what another process did before the lock was ours
            self._begun_before = False
            self._write_identity()
            write_file(self.path / STATED, self.text)
            return
        before = read_json(known)
        self.started = str(before["started"])
        self.additions = tuple(build(Addition, each) for each in before["additions"])
        self.planned, self.looks = int(before["planned"]), tuple(build(Look, each) for each in before["looks"])
        if before.get("sha256") != self.sha256:
            self._grow(before)
        if not os.path.lexists(self.path / STATED):
            write_file(self.path / STATED, self.text)

    def _grow(self, before: Mapping[str, Any]) -> None:
        """Take up what the study has more than ``before``. Raises `ConfigError`: it has not more, but something
        else."""
        added = growth(before["resolved"], self.resolved)
        if added is None:
            grown = (f" It has grown since it began: {'; '.join(each.what for each in self.additions)}."
                     if self.additions else "")
            raise ConfigError([f"out: {self.path} holds another study.{grown} Go on with the same models and settings "
                               f"(they stand in {STATED}), add models, seeds or a longer budget to them, or choose "
                               "another folder."])
        if added:
            longer = (self.path / RESULT).exists() and "budget" in " ".join(added)
            self.additions = (*self.additions, Addition(now(), "; ".join(added), self._worth() if longer else ()))
        self._write_identity()
        write_file(self.path / STATED, self.text)

    def _worth(self) -> tuple[EarlierFigure, ...]:
        """The bits per byte of each model before the budget becomes longer."""
        try:
            result = read_result(self.path)
        except CheckpointError as error:
            raise CheckpointError(error.what, where=error.where, remedy=(
                "Give the command once without the longer budget: finished runs are read back, and the result is "
                "written again. Then give this one.")) from None
        return tuple(EarlierFigure(entry.name, int(entry.median(lambda run: float(run.tokens)) or 0),
                                   entry.bits_per_byte)
                     for entry in result.entries if entry.bits_per_byte is not None)

    @property
    def share(self) -> float:
        """The share of the study's chance of error that its next look has; of the last one where nothing was added
        since."""
        if self._is_looked_at:
            return self.looks[-1].share
        return share_of(self.looks, len(self.resolved["study"]["seeds"]), self.planned)

    @property
    def _is_looked_at(self) -> bool:
        return bool(self.looks) and self.looks[-1].additions == len(self.additions)

    def counted(self, result: StudyResult) -> StudyResult:
        """A result with the looks at the study; its own, once no run is still to come, is kept before it is shown."""
        if not result.complete:
            return replace(result, looks=self.looks[:-1] if self._is_looked_at else self.looks)
        apart = tuple(sorted(f"{each.first} < {each.second}" if each.over_seeds.mean < 0 else
                             f"{each.second} < {each.first}" for each in result.differences if not each.tied))
        look = Look(now(), result.seeds, len(result.entries), self.share, apart, len(self.additions))
        if self._is_looked_at:
            look = replace(look, when=self.looks[-1].when)
            self.looks = self.looks[:-1]
        self.looks = (*self.looks, look)
        self._write_identity()
        return replace(result, looks=self.looks)

    def _write_identity(self) -> None:
        write_file(self.path / IDENTITY, dumps({"sha256": self.sha256, "started": self.started, "planned": self.planned,
                                                "additions": self.additions, "looks": self.looks,
                                                "resolved": self.resolved}, indent=1) + "\n")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Around what comes before the first trial or run. Where its settings or its text cannot be used, a study that
        begins here leaves nothing, so that the corrected one can have the folder."""
        try:
            yield
        except UserError:
            if not self._begun_before:
                self._withdraw()
            raise

    def _withdraw(self) -> None:
        """Delete what was written since this process, which alone writes here, saw that nothing of it stood here.
        ``study.json`` goes last, so that whatever is left is known to be a study's."""
        for folder in (self.path / "data", self.path / "pace"):
            if folder.is_dir() and not folder.is_symlink():
                discard(folder)
        for name in (SETTLED, STATED, IDENTITY):
            (self.path / name).unlink(missing_ok=True)

    def settled(self, name: str, make: Callable[[], str]) -> str:
        """A choice that is made once and holds however often the study is gone on with."""
        path = self.path / SETTLED
        known = read_json(path) if path.exists() else {}
        if name not in known:
            known[name] = make()
            write_file(path, json.dumps(known, indent=1) + "\n")
        return str(known[name])

    def known_result(self) -> StudyResult | None:
        """The result so far; None without a result that can be read."""
        try:
            return read_result(self.path)
        except UserError:
            return None

    def write_config(self, name: str, text: str) -> None:
        """A model's resolved run."""
        folder = self.path / "configs"
        folder.mkdir(exist_ok=True)
        write_file(folder / f"{name}.yaml", text)

    def write_result(self, result: StudyResult) -> None:
        """Write the result, and the page that shows it."""
        write_file(self.path / RESULT, dumps(result, indent=1) + "\n")
        write_file(self.path / REPORT, _signed(render(result)))


def read_result(folder: str | Path) -> StudyResult:
    """The result of a study.

    Raises:
        InputError: the folder holds no result.
        CheckpointError: the file is damaged, or of a newer format.
    """
    path = Path(folder) / RESULT
    if not path.exists():
        raise InputError("there is no result of a study here.", where=str(folder),
                         remedy="Give the folder that `weft compare --out` wrote.")
    try:
        return StudyResult.from_json(read_json(path))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"cannot be read ({error}).", where=str(path),
                              remedy="Run the study again: what is finished is read back.") from None


def rerender(folder: str | Path) -> Path:
    """Write a study's report again from its result, whose intervals are worked out again from its runs.

    Raises:
        CheckpointError: they are others than those that stand there.
        OccupiedError: another file stands in the report's place.
    """
    path, result = Path(folder) / REPORT, read_result(folder)
    if wrong := disagreement(result):
        raise CheckpointError(f"{wrong}.", where=str(Path(folder) / RESULT),
                              remedy="Run the study again: what is finished is read back.")
    page = _signed(render(result))
    if not (Path(folder) / IDENTITY).exists() and not _is_signed(path):
        require_free(path, single=True)
    write_file(path, page)
    return path


def _signed(page: str) -> str:
    return f"{page}<!-- weft {hashlib.sha256(page.encode()).hexdigest()} -->\n"


def _is_signed(path: Path) -> bool:
    """Whether a file is a report as Weft wrote it."""
    if path.is_symlink() or not path.is_file():
        return False
    page, _, end = path.read_bytes().rpartition(b"<!--")
    found = SIGNATURE.fullmatch(f"<!--{end.decode('utf-8', 'replace')}")
    return found is not None and found["sha256"] == hashlib.sha256(page).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """A file of one JSON object. Raises `CheckpointError`: it is damaged."""
    try:
        content = documents.read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the file is damaged ({error}).", where=str(path),
                              remedy="Delete it, and the study goes on from the pieces that are finished.") from None
    if not isinstance(content, dict):
        raise CheckpointError("the file is damaged (it holds no object).", where=str(path),
                              remedy="Delete it, and the study goes on from the pieces that are finished.")
    return content


def now() -> str:
    """Date and time, ISO 8601, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
