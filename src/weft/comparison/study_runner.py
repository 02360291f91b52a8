"""`run_study`: solve, settle, try, run, judge; and go on where an earlier attempt stopped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import final

import torch

from weft.comparison.assemble import Account, assemble
from weft.comparison.contestants import Contestant, Find, changed, contestants
from weft.comparison.folder import StudyFolder
from weft.comparison.jobs import Job, JobKind, Outcome, read_outcome
from weft.comparison.launch import Launch, OwnProcesses, done, in_this_process
from weft.comparison.origin import made_by_other_code
from weft.comparison.progress import Clock, StudyListener
from weft.comparison.results import StudyResult
from weft.comparison.study import Seeds, StudyConfig
from weft.comparison.texts import StudyTexts, prepare_texts
from weft.comparison.trials import Search, search
from weft.core.errors import FailedError
from weft.core.registry import is_loaded, load_plugin
from weft.training.compute import Compute
from weft.training.config import BUDGETS, DTYPES

LINES = 10
"""Lines of progress of a run."""
PACE_ROUNDS = 3
"""In which every model is timed, for a budget in seconds."""
EVALUATION = 2
"""Batches of the runs' own evaluations, which the study does not use: it measures their checkpoints itself."""


@dataclass(frozen=True)
class Options:
    """How a study runs, which decides nothing but its seconds and its bytes.

    Attributes:
        device: where to compute.
        threads: of the CPU; None: as many as torch takes.
        plugins: files that add parts, loaded in every process.
        own_processes: every piece of work has a process of its own, so that its peak memory is its own and the study
            survives its end.
        command: that repeats the study, for the report.
    """

    device: str = "cpu"
    threads: int | None = None
    plugins: tuple[str, ...] = ()
    own_processes: bool = True
    command: str = ""


def run_study(study: StudyConfig, out: str | Path, find: Find, options: Options | None = None,
              on_progress: StudyListener | None = None) -> StudyResult:
    """Run a study, or what is left of it.

    Args:
        study: what to compare.
        out: its folder; pieces of work that are finished there are read back.
        find: the file of a preset or path.
        options: how.
        on_progress: told of every line.

    Raises:
        ConfigError: the study cannot be run; every problem is listed.
        DataError: the text cannot be used.
        FailedError: how fast a model trains cannot be measured, which a budget in seconds needs.
        KeyboardInterrupt: Ctrl-C; the same call goes on.
    """
    for plugin in options.plugins if options else ():
        if not is_loaded(plugin):
            load_plugin(plugin)
    models, notes = contestants(study, find)
    resolved = {"study": study.model_dump(mode="json", exclude={"models"}),
                "runs": {each.name: each.run.dump() for each in models}}
    with StudyFolder(Path(out), study.model_dump(mode="json", exclude_none=True), resolved) as folder:
        chosen = options or Options()
        work = Study(study, models, notes, folder, chosen, on_progress)
        if not chosen.own_processes:
            return work.run(in_this_process)
        with OwnProcesses() as launch:
            return work.run(launch)


@final
class Study:
    """A study under way."""

    def __init__(self, study: StudyConfig, models: Sequence[Contestant], notes: Sequence[str], folder: StudyFolder,
                 options: Options, listener: StudyListener | None) -> None:
        self.study, self.folder, self.options, self.notes = study, folder, options, list(notes)
        self.texts: StudyTexts = prepare_texts(list(models), folder.path / "data")
        self.models = [replace(each, run=changed(each.run, {"data": {"path": str(self.texts.tokens[each.name])}}))
                       for each in models]
        self.threads = options.threads or torch.get_num_threads()
        self.clock = Clock(listener)
        self.launch: Launch = in_this_process

    def run(self, launch: Launch) -> StudyResult:
        """All of it, each piece of work by ``launch``. The result is written after every round of runs, one run of
        every model, so that a study that is stopped early is fair as far as it goes."""
        self.launch = launch
        self.models = [self._routed(each) for each in self.models]
        paid = self._paid_steps()
        self.models = [self._settled(each, paid.get(each.name)) for each in self.models]
        self._expect()
        searches = {each.name: search(each, self.study.trials, self.study.trial_seeds, self._trial)
                    for each in self.models if each.trained}
        self.models = [self._chosen(each, searches.get(each.name)) for each in self.models]
        self.notes += [note for each in searches.values() for note in each.notes]
        outcomes: dict[str, list[Outcome]] = {each.name: [] for each in self.models}
        account = Account(self.study, self.models, self.texts, self.folder, self.options.device, self.threads,
                          self.options.command, tuple(self.notes), self._counted_tokens())
        result = None
        for index, seeds in enumerate(self.study.seeds):
            for each in self.models:
                outcomes[each.name].append(self._run(each, index, seeds))
            result = assemble(account, searches, outcomes)
            self.folder.write_result(result)
        assert result is not None, "a study has at least one pair of seeds"
        return result

    def _paid_steps(self) -> dict[str, int]:
        """The steps that a budget in seconds pays for, by model. Every model is timed in each of several rounds, and
        the median counts: what else the machine does for a moment meets one round of some models."""
        timed = [each for each in self.models if each.trained and each.run.training.seconds is not None]
        steps: dict[str, list[int]] = {each.name: [] for each in timed}
        for index in range(PACE_ROUNDS):
            for each in timed:
                job = self._job("pace", each, self.folder.path / "pace" / each.name / str(index), self.texts.test)
                outcome = self._do(job, f"{each.name}, pace, {index + 1} of {PACE_ROUNDS}", work=0.0)
                if outcome.status != "finished":
                    raise FailedError(f"its pace cannot be measured: {outcome.note}", where=each.name,
                                      remedy="Correct its configuration, or leave the model out.")
                steps[each.name].append(outcome.steps)
        return {name: int(median(found)) for name, found in steps.items()}

    def _settled(self, model: Contestant, paid: int | None) -> Contestant:
        """With a number of steps, ``paid`` for by a budget in seconds, and with the study's rhythm of reports."""
        run = model.run
        if paid is not None:
            run = changed(run, {f"training.{name}": paid if name == "steps" else None for name in BUDGETS})
        steps = run.training.steps or 1
        every = max(1, steps // self.study.measure.checkpoints)
        return replace(model, run=changed(run, {
            "report.eval_every": every, "report.checkpoint_every": every, "report.eval_batches": EVALUATION,
            "report.log_every": max(1, steps // LINES)}))

    def _routed(self, model: Contestant) -> Contestant:
        """With the library of matrix products that was measured once, so that every run of the study has the same."""
        training = model.run.training
        if not model.trained or training.compute.matmul != "auto":
            return model
        route = self.folder.settled(f"matmul {training.dtype} {self.options.device}", lambda: Compute.choose(
            training.compute, dtype=DTYPES[training.dtype], device=self.options.device).matmul)
        return model.with_run({"training.compute.matmul": route})

    def _chosen(self, model: Contestant, found: Search | None) -> Contestant:
        return model if found is None else model.with_run({"training.optimizer.lr": found.lr})

    def _trial(self, model: Contestant, lr: float, seeds: Seeds, steps: int) -> Outcome:
        place = self.folder.path / "trials" / model.name / f"{lr:.6g}-{seeds.seed}"
        trial = model.with_run({
            "training.optimizer.lr": lr, "training.steps": steps, "seed": seeds.seed,
            "data.order_seed": seeds.order_seed, "report.eval_every": steps, "report.checkpoint_every": steps})
        return self._do(self._job("trial", trial, place, self.texts.tuning), self._trial_name(model.name, lr, seeds),
                        work=self._work(model, steps))

    def _run(self, model: Contestant, index: int, seeds: Seeds) -> Outcome:
        run = model.with_run({"seed": seeds.seed, "data.order_seed": seeds.order_seed})
        job = self._job("run", run, self.folder.path / "runs" / model.name / str(index), self.texts.test)
        return self._do(job, self._run_name(model.name, index), work=self._work(model, model.run.training.steps or 1))

    def _job(self, kind: JobKind, model: Contestant, folder: Path, text: Path) -> Job:
        return Job(kind, model.name, model.run, folder, text, self.texts.sha256,
                   None if model.trained else self._counted_tokens(), model.trained, model.flops_per_token,
                   self.study.measure, self.options.device, self.threads,
                   tuple(os.path.abspath(each) for each in self.options.plugins))

    def _counted_tokens(self) -> int | None:
        """What a counted model may read: the tokens of the budget, or else as many as the trained model that reads
        the most; None where there is neither."""
        unit, amount = self.study.training_budget
        if unit == "tokens":
            return int(amount)
        read = [(each.run.training.steps or 0) * each.tokens_per_step for each in self.models
                if each.trained or unit == "steps"]
        if unit == "steps" and read:
            return max(int(amount) * each.tokens_per_step for each in self.models)
        return max(read, default=None)

    def _expect(self) -> None:
        """Tell the clock what is to come; a trial's and a run's work are their operations."""
        settings = self.study.trials
        for each in self.models:
            steps = each.run.training.steps or 1
            if each.trained and (settings.number > 1 or settings.values is not None):
                short = max(1, round(settings.share * steps))
                for lr in settings.rates(each.run.training.optimizer.lr):
                    self.clock.expect(self._trial_name(each.name, lr, self.study.trial_seeds[0]),
                                      self._work(each, short))
            for index in range(len(self.study.seeds)):
                self.clock.expect(self._run_name(each.name, index), self._work(each, steps))

    def _work(self, model: Contestant, steps: int) -> float:
        return steps * model.tokens_per_step * (model.flops_per_token or 1.0)

    def _trial_name(self, name: str, lr: float, seeds: Seeds) -> str:
        again = "" if seeds == self.study.trial_seeds[0] else ", repeated"
        return f"{name}, trial of lr {lr:.3g}{again}"

    def _run_name(self, name: str, index: int) -> str:
        return f"{name}, run {index + 1} of {len(self.study.seeds)}"

    def _do(self, job: Job, what: str, *, work: float) -> Outcome:
        known = read_outcome(job)
        if known is None:
            self.clock.expect(what, work)
            if other := made_by_other_code(job):
                self.clock.tell(what, other, 0.0)
            self.clock.begin(what)
        outcome = known or done(job, self.launch, lambda line, step, steps: self.clock.tell(what, line,
                                                                                            step / max(1, steps)))
        found = "" if outcome.bits_per_byte is None else f", {outcome.bits_per_byte:.4f} bits/byte"
        self.clock.finish(what, f"{outcome.status}{found}{f': {outcome.note}' if outcome.note else ''}",
                          now=known is None)
        return outcome
