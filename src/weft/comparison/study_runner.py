"""`run_study`: solve, settle, try, run, judge; and go on where an earlier call stopped."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeAlias, final

import torch

from weft.analysis.arithmetic import threads_set
from weft.comparison.assemble import Attempt, StudyFacts, assemble
from weft.comparison.contestants import Contestant, Find, contestants
from weft.comparison.folder import StudyFolder, known_study
from weft.comparison.jobs import Job, JobKind, Options, Outcome, made_by_other_code, read_outcome
from weft.comparison.launch import Launch, OwnProcesses, done, in_this_process
from weft.comparison.power import Spread, detectable_in, spread_of, summary
from weft.comparison.progress import StudyListener, StudyPiece, WorkClock
from weft.comparison.study import StudyConfig, attempt_of, default_runs_said
from weft.comparison.study_result import StudyResult
from weft.comparison.texts import StudyTexts, prepare_texts
from weft.comparison.trials import Tuning, tune
from weft.core.errors import FailedError, UnsupportedError
from weft.core.registry import is_loaded, load_plugin
from weft.core.strict_json import dumps
from weft.training.compute import Compute
from weft.training.config import BUDGETS
from weft.training.files import parse_run
from weft.training.step_products import products_of

LINES = 10
"""Lines of progress of a run."""
PACE_ROUNDS = 3
"""In which every model is timed, for a budget in seconds."""
EVALUATION = 2
"""Batches of the runs' own evaluations, which the study does not use: it measures their checkpoints itself."""


Require: TypeAlias = Callable[[Contestant, Callable[[str], None]], None]
"""Takes a model, and what is called with lines of progress."""


def run_study(study: StudyConfig, out: str | Path, find: Find, options: Options | None = None,
              on_progress: StudyListener | None = None, *, require: Require | None = None) -> StudyResult:
    """Run a study, or what is left of it.

    Args:
        out: its folder; pieces of work that are finished there are read back.
        find: the file of a preset or path, or its plain data.
        on_progress: called with every line.
        require: called with each model that the study in ``out`` does not have yet, before anything is written; it
            raises an error for a model that is not to be compared.

    Raises:
        ConfigError: the study cannot be run; every problem is listed.
        DataError: the text cannot be used.
        UnsupportedError: how fast a model trains cannot be measured, which a budget in seconds needs.
        FailedError: that measurement was interrupted, or the study's own files cannot be written.
        KeyboardInterrupt: Ctrl-C; the same call goes on.
    """
    chosen = options or Options()
    for plugin in chosen.plugins:
        if not is_loaded(plugin):
            load_plugin(plugin)
    models, notes = contestants(study, find, chosen.device)
    known, clock = known_study(Path(out)), WorkClock(on_progress)
    if said := default_runs_said(study, known):
        clock.report("runs", said, 0.0, lasting=True)
    if require is not None:
        for each in models:
            if each.name not in known.models:
                require(each, partial(clock.report, each.name, share=0.0))
    resolved = {"study": study.model_dump(mode="json", exclude={"models"}),
                "runs": {each.name: each.run.dump() for each in models}}
    with (StudyFolder(Path(out), study.model_dump(mode="json", exclude_none=True), resolved) as folder,
          _written(folder.path)):
        with folder.beginning():
            work = Study(study, models, notes, folder, chosen, on_progress)
        if not chosen.own_processes:
            return work.run(in_this_process)
        with OwnProcesses() as launch:
            return work.run(launch)


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    """Around what the study itself writes."""
    try:
        yield
    except OSError as error:
        raise FailedError(f"the study's files cannot be written ({error.strerror or error}).",
                          where=str(error.filename or folder),
                          remedy="Free space; the same command goes on from what is finished.") from error


@final
class Study:
    """A study under way."""

    def __init__(self, study: StudyConfig, models: Sequence[Contestant], notes: Sequence[str], folder: StudyFolder,
                 options: Options, listener: StudyListener | None) -> None:
        self.study, self.folder, self.options, self.notes = study, folder, options, list(notes)
        self.texts: StudyTexts = prepare_texts(list(models), folder.path / "data")
        self.models = [replace(each, run=parse_run({**each.run.dump(), "data": {
            "path": str(self.texts.tokens[each.name])}})) for each in models]
        self.threads = options.threads or torch.get_num_threads()
        self.clock = WorkClock(listener, models=tuple(each.name for each in self.models), attempts=len(study.seeds))
        self.launch: Launch = in_this_process

    def run(self, launch: Launch) -> StudyResult:
        """All of it, each piece of work by ``launch``. The result is written after every round of runs, one run of
        every model, so that a study that is stopped early is fair as far as it goes."""
        self.launch = launch
        with self.folder.beginning():
            self.models = [self._routed(each) for each in self.models]
            paid = self._paid_steps()
        self.models = [self._settled(each, paid.get(each.name)) for each in self.models]
        self._expect()
        found, basis = detectable_in(self.study, math.comb(len(self.models), 2), self.folder.share, self._spread())
        self.clock.report("detectable difference", summary(found, basis, len(self.study.seeds)), 0.0, lasting=True)
        account = StudyFacts(self.study, self.models, self.texts, self.folder, self.options.device, self.threads,
                             self.options.command, tuple(self.notes), self._counted_tokens(), found, basis,
                             self.options.plugins)
        attempts: dict[str, list[Attempt]] = {each.name: [] for each in self.models}
        result = None
        for index in range(len(self.study.seeds)):
            tuned = self._tuned(index)
            for each in self.models:
                attempts[each.name].append(self._attempt(each, index, tuned.get(each.name)))
            result = assemble(account, attempts)
            self.folder.write_result(result)
        assert result is not None, "a study has at least one pair of seeds"
        return result

    def _spread(self) -> Spread | None:
        """How far figures moved in the runs that were here before the study grew, once for every growth."""
        if not self.folder.additions:
            return None

        def before() -> str:
            known = self.folder.known_result()
            return dumps(None if known is None else spread_of(known))

        stored = json.loads(self.folder.settled(f"spread of the runs before addition {len(self.folder.additions)}",
                                                before))
        return None if stored is None else Spread(*stored)

    def _paid_steps(self) -> dict[str, int]:
        """The steps that a budget in seconds pays for, by model. Every model is timed in each of several rounds, and
        the median counts: what else the machine does for a moment meets one round of some models."""
        timed = [each for each in self.models if each.trained and each.run.training.seconds is not None]
        steps: dict[str, list[int]] = {each.name: [] for each in timed}
        for index in range(PACE_ROUNDS):
            for each in timed:
                job = self._job("pace", each, f"pace/{each.name}/{index}")
                outcome = self._do(job, f"{each.name}, pace, {index + 1} of {PACE_ROUNDS}", 0.0)
                what = f"its pace cannot be measured: {outcome.note}"
                if outcome.status == "interrupted":
                    raise FailedError(what, where=each.name, remedy="Give the same command again.")
                if outcome.status != "finished":
                    raise UnsupportedError(what, where=each.name,
                                           remedy="Correct its configuration, or leave the model out.")
                steps[each.name].append(outcome.steps)
        return {name: int(median(found)) for name, found in steps.items()}

    def _settled(self, model: Contestant, paid: int | None) -> Contestant:
        """With a number of steps, ``paid`` for by a budget in seconds, and with the study's rhythm of reports."""
        if paid is not None:
            model = model.with_run(training={name: paid if name == "steps" else None for name in BUDGETS})
        steps = model.run.training.steps or 1
        every = max(1, steps // self.study.measure.curve_points)
        return model.with_run(report={"eval_every": every, "checkpoint_every": every, "eval_batches": EVALUATION,
                                      "log_every": max(1, steps // LINES)})

    def _routed(self, model: Contestant) -> Contestant:
        """With the routes of its matrix products settled once, so that every run of it has the same, on whatever
        machine and with whatever threads the study goes on."""
        training = model.run.training
        if not model.trained or training.compute.matmul != "auto":
            return model
        device = self.options.device
        compute = partial(Compute.choose, training.compute, dtype=training.dtype_on(device), device=device,
                          products=partial(products_of, model.run),
                          tell=lambda text: self.clock.report(model.name, text, 0.0))
        with threads_set(self.threads):
            routes = self.folder.settled(f"routes of {model.name} {training.dtype} {device}",
                                         lambda: json.dumps(dict(compute().routes)))
        return model.with_run(training={"compute": {"routes": json.loads(routes)}})

    def _tuned(self, index: int) -> dict[str, Tuning]:
        """The learning rates of an attempt at every model that gradients train."""
        return tune([each for each in self.models if each.trained], self.study.trials,
                    lambda model, lr: self._trial(model, index, lr))

    def _attempt(self, model: Contestant, index: int, tuned: Tuning | None) -> Attempt:
        """The run of an attempt, ``tuned`` unless the model is counted."""
        folder = f"runs/{model.name}/{index}"
        if tuned is None:
            return Attempt(None, False, (), self._run(model, index, None, folder), folder)
        if (trial := tuned.interrupted) is not None:
            note = f"the trial of learning rate {trial.lr:g} was interrupted: {trial.note}"
            return Attempt(None, False, tuned.trials, Outcome("interrupted", note), folder)
        if self._trials_are_runs(model) and tuned.lr in tuned.outcomes:
            return Attempt(tuned.lr, tuned.edge, tuned.trials, tuned.outcomes[tuned.lr],
                           self._trial_folder(model, index, tuned.lr))
        return Attempt(tuned.lr, tuned.edge, tuned.trials, self._run(model, index, tuned.lr, folder), folder)

    def _trial(self, model: Contestant, index: int, lr: float) -> Outcome:
        whole, steps = self._trials_are_runs(model), self.study.trials.steps(model.run.training.steps or 1)
        short = {} if whole else {"training": {"steps": steps},
                                  "report": {"eval_every": steps, "checkpoint_every": steps}}
        trial = self._seeded(model, index, lr).with_run(**short)
        job = self._job("run" if whole else "trial", trial, self._trial_folder(model, index, lr), tuning=True)
        return self._do(job, self._trial_name(model.name, index, lr), self._work(model, steps),
                        StudyPiece(model.name, index, None if whole else lr))

    def _run(self, model: Contestant, index: int, lr: float | None, folder: str) -> Outcome:
        job = self._job("run", self._seeded(model, index, lr), folder)
        return self._do(job, self._run_name(model.name, index), self._work(model, model.run.training.steps or 1),
                        StudyPiece(model.name, index))

    def _seeded(self, model: Contestant, index: int, lr: float | None) -> Contestant:
        """With the seeds of an attempt, and a learning rate."""
        return model.with_run(**attempt_of(self.study.seeds_of(model.name, index), lr))

    def _trials_are_runs(self, model: Contestant) -> bool:
        """Whether a trial is as long as a run, so that the best of them is the run."""
        steps = model.run.training.steps or 1
        return self.study.tries_rates and self.study.trials.steps(steps) >= steps

    def _trial_folder(self, model: Contestant, index: int, lr: float) -> str:
        return f"trials/{model.name}/{index}/{lr:g}"

    def _job(self, kind: JobKind, model: Contestant, folder: str, *, tuning: bool = False) -> Job:
        return Job(kind, model.name, model.run, self.folder.path / folder, self.texts.tuning if tuning else None,
                   self.texts.test, self.texts.hashes, None if model.trained else self._counted_tokens(), model.trained,
                   model.flops_per_token, self.study.measure, self.options.device, self.threads,
                   tuple(os.path.abspath(each) for each in self.options.plugins))

    def _counted_tokens(self) -> int | None:
        """The tokens that a counted model may read: those of the budget, or else as many as the trained model that
        reads the most; None where there is neither."""
        unit, amount = self.study.training_budget
        if unit == "tokens":
            return int(amount)
        read = [(each.run.training.steps or 0) * each.tokens_per_step for each in self.models
                if each.trained or unit == "steps"]
        if unit == "steps" and read:
            return max(int(amount) * each.tokens_per_step for each in self.models)
        return max(read, default=None)

    def _expect(self) -> None:
        """Announce what is to come; the work of a trial or a run is its number of operations."""
        for each in self.models:
            steps = each.run.training.steps or 1
            for index in range(len(self.study.seeds)):
                if each.trained and self.study.tries_rates:
                    work = self._work(each, self.study.trials.steps(steps))
                    for lr in self.study.trials.rates(each.run.training.optimizer.lr):
                        self.clock.expect(self._trial_name(each.name, index, lr), work)
                if not (each.trained and self._trials_are_runs(each)):
                    self.clock.expect(self._run_name(each.name, index), self._work(each, steps))

    def _work(self, model: Contestant, steps: int) -> float:
        """In FLOPs, and in tokens where no model is trained: beside training, counting takes no time."""
        if model.trained:
            return steps * model.tokens_per_step * (model.flops_per_token or 1.0)
        return 0.0 if any(each.trained for each in self.models) else float(steps * model.tokens_per_step)

    def _trial_name(self, name: str, index: int, lr: float) -> str:
        return f"{name}, attempt {index + 1} of {len(self.study.seeds)}, trial of lr {lr:g}"

    def _run_name(self, name: str, index: int) -> str:
        return f"{name}, run {index + 1} of {len(self.study.seeds)}"

    def _do(self, job: Job, what: str, work: float, piece: StudyPiece | None = None) -> Outcome:
        known = read_outcome(job)
        if known is None:
            self.clock.expect(what, work)
            if other := made_by_other_code(job):
                self.clock.report(what, other, 0.0)
            self.clock.begin(what, piece)
        outcome = known or done(job, self.launch, lambda line, step, steps: self.clock.report(
            what, line, step / max(1, steps), piece))
        bits = outcome.tuning_bits_per_byte if job.tuning is not None else outcome.bits_per_byte
        whose = " of the tuning text" if job.tuning is not None else ""
        found = "" if bits is None else f", {bits:.4f} bits/byte{whose}"
        ended = piece and replace(piece, status=outcome.status, bits_per_byte=outcome.bits_per_byte)
        self.clock.finish(what, f"{outcome.status}{found}{f': {outcome.note}' if outcome.note else ''}", ended,
                          now=known is None)
        return outcome
