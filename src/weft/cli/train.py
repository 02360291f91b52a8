"""``weft train``."""

from __future__ import annotations

import json as text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.closing import Given, is_folder, word
from weft.cli.options import INTERRUPTED, Common, Config, Overrides, Unchecked, guarded, pairs_of, prepare, print_json

if TYPE_CHECKING:
    from weft.training.run_training import TrainResult

TERMINATED = 143
"""128 + SIGTERM, the exit code that shells report for a process ended by it."""


def _after(given: Given) -> str:
    config = given["config"]
    folder = word(given["out"] or (config if is_folder(config) else "runs/latest"))
    return f"weft eval {folder} measures it, weft generate {folder} --prompt TEXT writes with it"


@guarded(_after)
def train(config: Config, overrides: Overrides = None, *,
          data: Annotated[Path | None, typer.Option("--data", help="A text file or folder; default: that of the "
                                                    "configuration, or the source of Python's library.")] = None,
          begin: Annotated[str | None, typer.Option("--from", metavar="CHECKPOINT|FOLDER", help="Begin with the "
                                                    "weights, tokenizer and chat template of this checkpoint, run or "
                                                    "folder of transformers; of CONFIG's model only its head "
                                                    "stays.")] = None,
          steps: Annotated[int | None, typer.Option("--steps", min=1, help="Training steps; in all, CONFIG may be the "
                                                    "folder of a run, which then goes on.")] = None,
          out: Annotated[Path | None, typer.Option("--out", help="Write here; the run's folder, default runs/latest, "
                                                   "or that of a run that goes on.")] = None,
          resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint in --out.")] = False,
          allow_inexact: Annotated[bool, typer.Option("--allow-inexact", help="Resume even if code, plugins, "
                                                      "processor, torch, device or the number of processes differ, "
                                                      "and with them the weights.")] = False,
          unchecked: Unchecked = False,
          seed: Annotated[int | None, typer.Option("--seed", help="Seed of random numbers; those of initial "
                                                      "weights and dropout.")] = None,
          common: Annotated[Common, "device dtype threads kernels plugin json"]) -> None:
    """Train a model, by gradients or by counting.

    Ctrl-C (or SIGTERM) saves a checkpoint after the current step, a second one stops at once; --resume continues from
    the last checkpoint and ends with the same weights as an uninterrupted run.

    Data parallel: torchrun --nproc-per-node N -m weft train ... gives each process its share of every batch.
    """
    prepare(common.plugin, common.threads)
    from weft import api
    from weft.cli.live import showing
    from weft.training.interrupt import Terminated
    from weft.training.parallel import FailedElsewhere, leads

    given = {"data.path": None if data is None else str(data), "seed": seed, "training.dtype": common.dtype,
             "training.steps": steps}
    forms = {f"kernels.{name}": form for name, form in pairs_of(common.kernels or []).items()}
    changes = [*(overrides or []), *(f"{key}={text.dumps(value)}" for key, value in {**given, **forms}.items()
                                     if value is not None)]
    leading = leads()
    try:
        with showing(quiet=common.json or not leading) as listener:
            result = api.train(config, changes, start=begin, out=out, resume=resume, allow_inexact=allow_inexact,
                               unchecked=unchecked, device=common.device, on_event=listener)
    except FailedElsewhere as error:
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt as interrupt:
        terminated = isinstance(interrupt, Terminated)
        if leading:
            typer.echo("terminated" if terminated else "interrupted", err=True)
        raise typer.Exit(TERMINATED if terminated else INTERRUPTED) from None
    if leading:
        _show(result, json=common.json)


def _show(result: TrainResult, *, json: bool) -> None:
    found = result.validation
    if json:
        print_json({"steps": result.steps, "seconds": result.seconds, "checkpoint": result.checkpoint,
                    "best": result.best, "validation": {
                        "bits_per_byte": found.bits_per_byte, "loss": found.loss, "tokens": found.tokens,
                        "bytes": found.bytes, **found.measures}})
    else:
        typer.echo(f"validation {found.chosen()} after {result.steps:,} steps; "
                   f"last checkpoint {result.checkpoint}, best {result.best}")
