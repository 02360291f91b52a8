"""A first working day: four language models of different ages, trained for about a minute each on one text.

The models take turns, each in a process of its own: one trains to its next evaluation while the others wait, so their
bits per byte fall side by side and nobody's clock is disturbed. Run it with ``make run``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console

MODELS = ("ngram", "lstm", "transformer", "s4d")
PROMPT = "def main("
WIDTH = 16


@dataclass(frozen=True)
class Begun:
    """A model is built: what it is, and what it reads."""

    description: str
    corpus: str


@dataclass(frozen=True)
class Measured:
    """An evaluation: seconds of training so far, and bits per byte of the text held out."""

    seconds: float
    bits_per_byte: float


@dataclass(frozen=True)
class Finished:
    """The run is over."""

    sample: str


@dataclass(frozen=True)
class Failed:
    """The run cannot go on."""

    message: str


Message = Begun | Measured | Finished | Failed


def work(preset: str, changes: list[str], out: Path, line: Connection) -> None:
    """Train one model in this process, waiting after each message until it is our turn again."""
    import weft
    from weft.core.errors import WeftError
    from weft.training import Event, Started, Validated

    def tell(message: Message) -> None:
        line.send(message)
        line.recv()

    def listen(event: Event) -> None:
        if isinstance(event, Started):
            tell(Begun(f"{event.parameters:,} parameters" if event.steps else "counts", event.corpus))
        elif isinstance(event, Validated):
            tell(Measured(event.seconds, event.validation.bits_per_byte))

    line.recv()
    try:
        result = weft.train(preset, changes, out=out / preset, on_event=listen)
        sampling = weft.Sampling(temperature=0.7, top_p=0.95)
        rows = weft.generate(result.checkpoint, [PROMPT], max_new_tokens=60, sampling=sampling, seed=1).rows
        line.send(Finished(rows[0].text or ""))
    except WeftError as error:
        line.send(Failed(str(error)))


class Runner:
    """One model's process, seen from outside."""

    def __init__(self, preset: str, changes: list[str], out: Path) -> None:
        self.preset, self.measured, self.sample = preset, Measured(0.0, 8.0), ""
        self.line, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=work, args=(preset, changes, out, theirs), daemon=True)
        self.process.start()
        self.done = False

    def turn(self) -> Message:
        """Let it work until it has something to tell."""
        self.line.send(None)
        try:
            message: Message = self.line.recv()
        except EOFError:
            message = Failed("the process died")
        if isinstance(message, Measured):
            self.measured = message
        self.done = isinstance(message, Finished | Failed)
        if isinstance(message, Finished):
            self.sample = message.sample
        return message


def main() -> int:
    """Train, tell, sample."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60.0, help="of training for each model")
    options.add_argument("--out", type=Path, default=None, help="folder of the runs")
    options.add_argument("--record", type=Path, default=None, help="file for what was printed, as the README quotes it")
    options.add_argument("changes", nargs="*", help="key.path=value, for every model")
    given = options.parse_args()
    out = given.out or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    multiprocessing.set_start_method("spawn")
    changes = ["report.eval_batches=10", *given.changes]
    budget = [f"training.seconds={given.seconds}", "training.steps=null"]
    runners = [Runner(name, changes if name == "ngram" else changes + budget, out) for name in MODELS]
    console = Console(highlight=False, soft_wrap=True, record=True)
    code = follow(runners, out, console)
    if given.record is not None and not code:
        given.record.write_text(json.dumps(figures(console.export_text(), given.seconds), indent=2) + "\n")
    return code


def figures(printed: str, seconds: float) -> dict[str, object]:
    """What was printed, and what it depends on: configurations, budget, software."""
    import torch

    import weft

    return {"printed": printed.split("\ncheckpoints are in")[0].splitlines(), "seconds": seconds,
            "configurations": {name: fingerprint(name) for name in MODELS}, "weft": weft.__version__,
            "torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count(),
            "date": time.strftime("%Y-%m-%d")}


def fingerprint(preset: str) -> str:
    """A hash of a preset's resolved configuration."""
    import weft

    return hashlib.sha256(json.dumps(weft.read_run(preset).dump(), sort_keys=True).encode()).hexdigest()[:16]


def follow(runners: list[Runner], out: Path, console: Console) -> int:
    """Give turns until everybody has finished; a line after every round."""
    begun = [runner.turn() for runner in runners]
    for runner, message in zip(runners, begun, strict=True):
        if isinstance(message, Begun):
            console.print(f"{runner.preset:>{WIDTH}}  {message.description}")
    console.print(f"{'text':>{WIDTH}}  " + next((m.corpus for m in begun if isinstance(m, Begun)), "none"))
    console.print("\nbits per byte of the text held out, after so many seconds of training each\n")
    console.print("seconds".rjust(WIDTH) + "".join(runner.preset.rjust(WIDTH) for runner in runners), style="bold")
    failures = [(r, m) for r, m in zip(runners, begun, strict=True) if isinstance(m, Failed)]
    while not all(runner.done for runner in runners):
        told = [(runner, runner.turn()) for runner in runners if not runner.done]
        failures += [(runner, message) for runner, message in told if isinstance(message, Failed)]
        if any(isinstance(message, Measured) for _, message in told):
            seconds = max(runner.measured.seconds for runner in runners)
            cells = "".join(f"{runner.measured.bits_per_byte:{WIDTH}.3f}" for runner in runners)
            console.print(f"{seconds:{WIDTH}.{0 if seconds >= 10 else 1}f}{cells}")
    for runner in runners:
        if runner.sample:
            console.print(f"\n{runner.preset} goes on from {PROMPT!r}:", style="bold", markup=False)
            console.print(PROMPT + runner.sample, markup=False)
    for runner, failure in failures:
        console.print(f"\n{runner.preset} failed: {failure.message}", style="red", markup=False)
    console.print(f"\ncheckpoints are in {out}; try: .venv/bin/weft generate {out / 'transformer'} --prompt 'import '")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
