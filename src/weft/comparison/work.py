"""Doing a piece of work: training, measured at its checkpoints, and what is measured afterwards."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch

from weft.checkpoints import load_checkpoint
from weft.checkpoints.layout import RUN_CHECKPOINTS, step_name
from weft.checkpoints.locate import saved_checkpoints
from weft.checkpoints.save import save_checkpoint
from weft.comparison.jobs import Job, OnProgress, Outcome, write_outcome
from weft.comparison.measures import by_length, decoding_cost, forget_peak, peak_memory_bytes, sample, token_scores
from weft.comparison.results import CurvePoint
from weft.comparison.study import default_contexts
from weft.comparison.texts import few_documents, tokens_paid_for
from weft.core.errors import (
    CheckpointError,
    ConfigError,
    DivergedError,
    FailedError,
    TrainingError,
    UnsupportedError,
    WeftError,
    from_ctrl_c,
)
from weft.core.model import Counted, LanguageModel, language_model, parameter_count
from weft.core.strict_json import build, dumps
from weft.data import TokenStream, encode_corpus, read_text
from weft.disk.atomic import write_file
from weft.disk.documents import parse_json
from weft.disk.lock import LOCK_FILE
from weft.tasks.base import fit_by_counting
from weft.tokenizers import Tokenizer
from weft.training.budget import settle_steps, tokens_per_step
from weft.training.events import Event, Progress, Saved, Started
from weft.training.folder import RUN_FILE
from weft.training.material import prepare
from weft.training.run_training import TrainResult, build_model, train

RUN_FOLDER = "run"
CURVE_FILE, MEMORY_FILE = "curve.jsonl", "memory.txt"
OUT_OF_MEMORY = "can't allocate memory"
LONGER = 3
"""Windows up to this many doublings of the context, the context itself among them, are evaluated and decoded."""


def do(job: Job, on_progress: OnProgress) -> Outcome:
    """Do a piece of work and write down how it went; an interrupted run goes on from its last checkpoint.

    Trouble of the model's own (it has diverged, or its configuration cannot be trained) is an outcome. Trouble of the
    machine (a full disk, want of memory) is none: it gives the outcome ``interrupted``, which is not written down.
    """
    try:
        outcome = _judged(job, on_progress)
        write_outcome(job, outcome)
    except (TrainingError, OSError, MemoryError, torch.OutOfMemoryError) as error:
        return Outcome("interrupted", str(error) or "there is not enough memory")
    return outcome


def _judged(job: Job, on_progress: OnProgress) -> Outcome:
    """The outcome of the model itself.

    Raises:
        TrainingError: a file could not be written.
        OSError: the same.
        MemoryError: there was not enough.
        KeyboardInterrupt: Ctrl-C, whatever a library has made of it.
    """
    try:
        return _done(job, on_progress)
    except DivergedError as error:
        return Outcome("diverged", str(error))
    except (TrainingError, torch.OutOfMemoryError):
        raise
    except (WeftError, RuntimeError) as error:
        if from_ctrl_c(error):
            raise KeyboardInterrupt from error
        if isinstance(error, WeftError):
            return Outcome("failed", str(error))
        if OUT_OF_MEMORY in str(error):  # PyTorch's allocator on a processor has no class of errors for it
            raise MemoryError(str(error)) from error
        return Outcome("failed", f"its code raises {type(error).__name__}: {error}")


def _done(job: Job, on_progress: OnProgress) -> Outcome:
    if job.kind == "pace":
        return _pace(job)
    trained = _train(job, on_progress) if job.trained else _count(job)
    tuned = None
    if job.tuning is not None:
        tuning = encode_corpus(read_text(job.tuning), trained.tokenizer)
        tuned = token_scores(trained.model, tuning, job.run.context, trained.steps).bits_per_byte
    outcome = Outcome("finished", tuning_bits_per_byte=tuned, steps=trained.steps, tokens=trained.tokens,
                      seconds=trained.seconds, peak_memory_bytes=trained.peak, numbers=_numbers(trained.model))
    if job.kind == "trial":
        shutil.rmtree(job.folder / RUN_FOLDER, ignore_errors=True)
        return outcome
    return _measured(job, trained, outcome)


def _measured(job: Job, trained: Trained, outcome: Outcome) -> Outcome:
    """The figures of a run on the test text, and its costs."""
    judge = encode_corpus(read_text(job.test), trained.tokenizer)
    scores = token_scores(trained.model, judge, job.run.context, trained.steps)
    nats, sizes = scores.clusters()
    contexts = job.measure.contexts or default_contexts(job.run.context, LONGER)
    decoded = job.measure.decode_contexts or contexts
    return replace(outcome, bits_per_byte=scores.bits_per_byte, loss=scores.loss, curve=trained.curve,
                   lost_bits_per_byte=scores.lost_bits_per_byte,
                   by_position=scores.by_position(), cluster_nats=tuple(nats), cluster_bytes=tuple(sizes),
                   by_length=by_length(trained.model, trained.few, contexts, job.run.context),
                   decode=decoding_cost(trained.model, trained.few, decoded, job.measure.decode_steps),
                   sample=sample(trained.model, trained.tokenizer, judge, job.measure))


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model, and what was measured during training.

    Attributes:
        few: a part of the test text, for curves and other lengths.
        peak: bytes of memory during training.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    few: TokenStream
    steps: int
    tokens: int
    seconds: float
    peak: int
    curve: tuple[CurvePoint, ...]


def _pace(job: Job) -> Outcome:
    """The number of steps that a budget in seconds pays for."""
    material = prepare(job.run)
    torch.manual_seed(job.run.seed)
    model = build_model(job.run).to(job.device)
    return Outcome("finished", steps=settle_steps(job.run, model, material.train, torch.device(job.device)))


def _train(job: Job, on_progress: OnProgress) -> Trained:
    place = job.folder / RUN_FOLDER
    recorder = RunRecorder(job, on_progress)
    try:
        result = _resumed(job, place, recorder)
    except (CheckpointError, ConfigError, UnsupportedError):
        if not place.exists():
            raise
        # What an earlier attempt has left cannot be resumed, so the run starts again.
        for path in (place, recorder.path, recorder.memory):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        result = train(job.run, place, device=job.device, on_event=recorder)
    tokens = result.steps * tokens_per_step(job.run)
    return Trained(language_model(result.model, "comparing"), result.tokenizer, recorder.few(result.tokenizer),
                   result.steps, tokens, result.seconds, recorder.peak(), recorder.curve())


def _resumed(job: Job, place: Path, recorder: RunRecorder) -> TrainResult:
    resume = (place / RUN_FILE).exists() or (place / LOCK_FILE).exists()
    if resume and (saved := saved_checkpoints(place)):
        recorder.measure(saved[-1])
    return train(job.run, place, resume=resume, device=job.device, on_event=recorder)


def _count(job: Job) -> Trained:
    material = prepare(job.run)
    model = language_model(build_model(job.run), "comparing")
    stream = material.train if job.tokens is None else tokens_paid_for(material.train, job.run, job.tokens)
    forget_peak()
    begun = time.perf_counter()
    fit_by_counting(job.run.made_task(), model, stream)
    seconds, peak = time.perf_counter() - begun, peak_memory_bytes()
    try:
        save_checkpoint(job.folder / RUN_FOLDER / RUN_CHECKPOINTS / step_name(1), model, material.tokenizer,
                        run=job.run.dump(), facts={"step": 1, "seconds": seconds}, replace=True)
    except (CheckpointError, FailedError) as error:  # a full disk is no fault of the model, here as in training
        raise TrainingError(error.what, where=error.where, remedy=error.remedy) from error
    # Of a part, the inputs count, as they do for models that gradients train; each window has one target more.
    tokens = len(stream) if stream is material.train else max(1, (job.tokens or 0) // job.run.context) * job.run.context
    few = encode_corpus(few_documents(job.test, job.measure.curve_bytes), material.tokenizer)
    scores = token_scores(model, few, job.run.context, 1)
    point = CurvePoint(1, tokens, 0.0, seconds, scores.bits_per_byte, scores.loss)
    return Trained(model, material.tokenizer, few, 1, tokens, seconds, peak, (point,))


def _numbers(model: LanguageModel) -> int:
    """Weights; for a counted model the probabilities and back-off weights that it keeps."""
    if isinstance(model, Counted):
        return sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point())
    return parameter_count(model)


@final
class RunRecorder:
    """Records a run: its progress, a measurement at every checkpoint, and its peak memory.

    Points go into a file as they come, so that an interrupted run keeps them.
    """

    def __init__(self, job: Job, on_progress: OnProgress) -> None:
        self.job, self.on_progress = job, on_progress
        self._few: TokenStream | None = None
        self.path = job.folder / CURVE_FILE
        self.memory = job.folder / MEMORY_FILE

    def __call__(self, event: Event) -> None:
        """One event of the run."""
        if isinstance(event, Started):
            forget_peak()
        elif isinstance(event, Progress):
            self.on_progress(f"step {event.step:,}/{event.steps:,}  {event.bits_per_byte:.4f} bits/byte in training  "
                             f"{event.tokens_per_second:,.0f} tokens/s", event.step, event.steps)
        elif isinstance(event, Saved) and self.job.kind == "run":
            self._record_memory()
            self.measure(event.path)

    def measure(self, checkpoint: Path) -> None:
        """Measure a checkpoint that has not been measured."""
        if self.job.kind != "run":
            return
        loaded = load_checkpoint(checkpoint, device=self.job.device, verify=False)
        step = int(loaded.facts["step"])
        if step in {point.step for point in self.curve()}:
            return
        assert loaded.tokenizer is not None, "a run saves its tokenizer"
        model = language_model(loaded.model, "comparing")
        scores = token_scores(model, self.few(loaded.tokenizer), self.job.run.context, step)
        tokens = step * tokens_per_step(self.job.run)
        point = CurvePoint(step, tokens, tokens * (self.job.flops_per_token or 0.0), float(loaded.facts["seconds"]),
                           scores.bits_per_byte, scores.loss)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(dumps(point) + "\n")

    def few(self, tokenizer: Tokenizer) -> TokenStream:
        """The part of the text that curves are measured on."""
        if self._few is None:
            self._few = encode_corpus(few_documents(self.job.test, self.job.measure.curve_bytes), tokenizer)
        return self._few

    def curve(self) -> tuple[CurvePoint, ...]:
        """The points so far; a line that was cut off is left out."""
        points: dict[int, CurvePoint] = {}
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        for line in lines:
            try:
                point = build(CurvePoint, parse_json(line))
            except ValueError:
                continue
            points[point.step] = point
        return tuple(points[step] for step in sorted(points))

    def peak(self) -> int:
        """Bytes, over all the parts of an interrupted run."""
        self._record_memory()
        return int(self.memory.read_text())

    def _record_memory(self) -> None:
        before = int(self.memory.read_text()) if self.memory.exists() else 0
        now = (torch.cuda.max_memory_allocated(self.job.device) if torch.device(self.job.device).type == "cuda"
               else peak_memory_bytes())
        write_file(self.memory, str(max(before, now)))
