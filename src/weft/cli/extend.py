"""``weft extend``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.closing import word
from weft.cli.evaluate import held_out_part
from weft.cli.generate import Checkpoint
from weft.cli.options import CONTEXT, Common, Overrides, Seed, guarded, print_json
from weft.cli.text import OPTION as LENGTHS
from weft.cli.text import lengths_of

if TYPE_CHECKING:
    from weft.extending import Extended

DEFAULT_METHOD = "yarn"


@guarded(lambda given: f"weft eval {word(given['out'])} measures it, weft generate {word(given['out'])} --prompt TEXT "
         "writes with it")
def extend(checkpoint: Checkpoint, overrides: Overrides = None, *,
           context: Annotated[int, CONTEXT],
           scaling: Annotated[str, typer.Option("--scaling", help="How rotary positions are rescaled: linear (position "
                                               "interpolation), ntk, yarn or longrope (which searches for its "
                                               "factors).")] = DEFAULT_METHOD,
           out: Annotated[Path, typer.Option("--out", help="Write here; a new folder, or the one that the same "
                                                  "command left.")] = Path("runs/extended"),
           data: Annotated[Path | None, typer.Option("--data", help="A text file or folder; of long documents, to "
                                                     "measure perplexity on; by default what the model's run held "
                                                     "out.")] = None,
           part: Annotated[str | None, typer.Option("--part", help="Part of the text; of what the run held out, "
                                                    "validation (default) or test.")] = None,
           lengths: Annotated[str | None, typer.Option(LENGTHS, metavar="N,N,...", help="Measure at each of these "
                                                       "lengths, in tokens; by default from half the model's context "
                                                       "on, doubling.")] = None,
           last_tokens: Annotated[int, typer.Option("--last-tokens", min=2, help="Measure on the last so many tokens "
                                                    "of the text.")] = 65536,
           steps: Annotated[int | None, typer.Option("--steps", min=1, help="Training steps; after the rescaling, "
                                                     "as the model's run did, at a tenth of its learning "
                                                     "rate; OVERRIDES change that training.")] = None,
           search: Annotated[int | None, typer.Option("--search", min=3, help="longrope: how many lists of factors are "
                                                      "tried; 48.")] = None,
           seed: Seed = 0,
           common: Annotated[Common, "device threads plugin json revision offline allow_pickles"]) -> None:
    """Extend a model with rotary positions to a longer context.

    Its perplexity is measured against the length of the context: before, after the rescaling, and after brief training
    where --steps asks for it. A command that was stopped goes on when it is given again.
    """
    common.prepare()
    from weft import api
    from weft.cli.live import showing

    held_out = held_out_part(part, data)
    sizes = None if lengths is None else tuple(size for size in lengths_of(lengths) if size is not None)
    loaded = common.load(checkpoint, "perplexity")
    with showing(quiet=common.json) as listener:
        found = api.extend(loaded, out, context=context, method=scaling, data=data, part=held_out, steps=steps,
                           measuring=api.Measuring(tokens=last_tokens, lengths=sizes, search=search, seed=seed),
                           overrides=overrides or (), on_event=listener)
    if common.json:
        print_json(found)
    else:
        _print(found)


def _print(found: Extended) -> None:
    from weft.cli.text import console, table

    out = console()
    rows = table(">context", *(f">{stage.name}" for stage in found.stages))
    for index, length in enumerate(found.lengths):
        rows.add_row(f"{length:,}", *(f"{stage.evaluations[index].perplexity:,.2f}" for stage in found.stages))
    numbers = ", ".join(f"{name} {value}" for name, value in found.scaling.items()
                        if name != "kind" and isinstance(value, int | float) and not isinstance(value, bool))
    out.print(f"{found.method}: {numbers}; trained context {found.trained:,} tokens, now {found.context:,}")
    out.print("perplexity per token by context:")
    out.print(rows)
    if found.tuning:
        out.print(f"tuned: {found.tuning['steps']:,} steps of {found.tuning['tokens_per_step']:,} tokens at a "
                  f"learning rate of {found.tuning['learning_rate']:g}")
    first = found.stages[0].evaluations[0]
    out.print(f"measured on {first.protocol.corpus}; windows of each length advance by half of it; "
              f"{found.beyond:.0%} of the tokens stand beyond the trained context in their document")
    typer.echo(f"use {found.checkpoint}")
