"""What is measured while a run is under way: its curve, checkpoint by checkpoint, and its peak memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, final

import torch

from weft.checkpoints import load_checkpoint
from weft.comparison.jobs import Job
from weft.comparison.measures import token_scores
from weft.comparison.results import CurvePoint
from weft.comparison.texts import few_documents
from weft.core.model import language_model
from weft.core.strict_json import build, dumps
from weft.data import TokenStream, encode_corpus
from weft.disk.atomic import write_file
from weft.tokenizers import Tokenizer
from weft.training.budget import tokens_per_step
from weft.training.events import Event, Progress, Saved, Started

OnProgress: TypeAlias = Callable[[str, int, int], None]
"""A line for people, updates done, and updates of the whole run."""

CURVE_FILE, MEMORY_FILE = "curve.jsonl", "memory.txt"


@final
class Recorder:
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
                point = build(CurvePoint, json.loads(line))
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


STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak() -> None:
    """Begin anew, where the system can (Linux): what reading the text took is then not counted."""
    try:
        RESET.write_text("5")
    except OSError:
        return


def peak_memory_bytes() -> int:
    """Resident memory at its highest since `forget_peak`, or since the process began where that is impossible."""
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return 0
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
