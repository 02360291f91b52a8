"""``weft train``."""

from __future__ import annotations

import json as text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.config import Config, Overrides
from weft.cli.options import (
    INTERRUPTED,
    Device,
    Dtype,
    Json,
    Kernels,
    Plugin,
    Threads,
    guarded,
    pairs_of,
    prepare,
    print_json,
)

if TYPE_CHECKING:
    from weft.training import TrainResult

Unchecked = Annotated[bool, typer.Option("--unchecked", help="Train parts of a plugin without holding them to the laws "
                                                             "first, which takes some seconds.")]
TERMINATED = 143
"""128 + SIGTERM, as a shell tells of a process that ended by it."""


@guarded
def train(config: Config, overrides: Overrides = None,
          data: Annotated[Path | None, typer.Option("--data", help="A text file or folder; else the configuration's, "
                                                    "else the Python standard library's source.")] = None,
          out: Annotated[Path, typer.Option("--out", help="The run's folder.")] = Path("runs/latest"),
          resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")] = False,
          allow_inexact: Annotated[bool, typer.Option("--allow-inexact", help="Resume even where code, plugins, "
                                                      "processor, torch, device or the number of processes are others, "
                                                      "so that the weights differ.")] = False,
          unchecked: Unchecked = False,
          seed: Annotated[int | None, typer.Option("--seed", help="Seed of weights and dropout.")] = None,
          device: Device = "cpu", dtype: Dtype = None, threads: Threads = None, kernels: Kernels = None,
          plugin: Plugin = None, json: Json = False) -> None:
    """Train a model, by gradients or by counting.

    Ctrl-C (or SIGTERM) saves a checkpoint after the step under way, a second one stops at once; --resume goes on from
    the last checkpoint, to the same weights as without the interruption.

    Data parallel: torchrun --nproc-per-node N -m weft train ... gives each process its share of every batch.
    """
    prepare(plugin, threads)
    from weft import api
    from weft.cli.live import showing
    from weft.training.interrupt import Terminated
    from weft.training.parallel import FailedElsewhere, leads

    given = {"data.path": None if data is None else str(data), "seed": seed, "training.dtype": dtype}
    forms = {f"kernels.{name}": form for name, form in pairs_of(kernels or []).items()}
    changes = [*(overrides or []), *(f"{key}={text.dumps(value)}" for key, value in {**given, **forms}.items()
                                     if value is not None)]
    tells = leads()
    try:
        with showing(quiet=json or not tells) as listener:
            result = api.train(config, changes, out=out, resume=resume, allow_inexact=allow_inexact,
                               unchecked=unchecked, device=device, on_event=listener)
    except FailedElsewhere as error:
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt as interrupt:
        raise _stopped(tells, terminated=isinstance(interrupt, Terminated)) from None
    if tells:
        _show(result, json=json)


def _stopped(tells: bool, *, terminated: bool) -> typer.Exit:
    if tells:
        typer.echo("terminated" if terminated else "interrupted", err=True)
    return typer.Exit(TERMINATED if terminated else INTERRUPTED)


def _show(result: TrainResult, *, json: bool) -> None:
    if json:
        print_json(_facts(result))
    else:
        typer.echo(f"validation {result.validation.chosen()} after {result.steps:,} steps; "
                   f"last checkpoint {result.checkpoint}, best {result.best}")


def _facts(result: TrainResult) -> dict[str, object]:
    found = result.validation
    return {"steps": result.steps, "seconds": result.seconds, "checkpoint": result.checkpoint, "best": result.best,
            "validation": {"bits_per_byte": found.bits_per_byte, "loss": found.loss, "tokens": found.tokens,
                           "bytes": found.bytes, **found.measures}}
