"""``weft eval``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.bleu import require_bleu, require_pairs, translated
from weft.cli.generate import Checkpoint
from weft.cli.options import (
    AllowPickles,
    Device,
    Dtype,
    Json,
    Kernels,
    Offline,
    Plugin,
    Revision,
    Threads,
    guarded,
    on_disk,
    prepare,
    print_json,
)
from weft.cli.translate import Beams, Cut, Formula, LengthPenalty, search_of

if TYPE_CHECKING:
    from weft.checkpoints import Loaded
    from weft.evaluation import Evaluation
    from weft.evaluation.bleu import Bleu
    from weft.tasks.material import HeldOut


@guarded
def evaluate(checkpoint: Checkpoint,
             data: Annotated[Path | None, typer.Option("--data", help="A text file or folder, read with the "
                                                       "run's settings; by default the text that the run held "
                                                       "out.")] = None,
             part: Annotated[str | None, typer.Option("--part", help="Which of the run's held-out texts: validation "
                                                      "(default) or test.")] = None,
             context: Annotated[str | None, typer.Option("--context", help="Tokens in each window; several "
                                                         "numbers, N,N,..., give one line each.")] = None,
             stride: Annotated[int | None, typer.Option("--stride", help="Tokens from one window to the next.")] = None,
             documents: Annotated[bool, typer.Option("--documents", help="Evaluate whole documents, the state "
                                                     "carried through.")] = False,
             batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Rows evaluated at once.")] = 8,
             bleu: Annotated[bool, typer.Option("--bleu", help="Also translate the sources of pairs, and compare with "
                                                "the targets (extra bleu).")] = False,
             beams: Beams = 4, length_penalty: LengthPenalty = 0.6, length_formula: Formula = "gnmt",
             cut: Cut = False, translations: Annotated[Path | None, typer.Option(
                 "--translations", help="With --bleu, write them to this new file, one a line.")] = None,
             device: Device = "cpu", dtype: Dtype = None, threads: Threads = None, kernels: Kernels = None,
             plugin: Plugin = None, json: Json = False,
             revision: Revision = None, offline: Offline = False, allow_pickles: AllowPickles = False) -> None:
    """Measure a model on held-out data: perplexity and bits per byte, or the metrics of its run's task."""
    prepare(plugin, threads, kernels)
    from weft import api
    from weft.tasks.next_token import NextTokenConfig

    held_out, sizes = held_out_part(part, data), numbers_of(context, "--context")
    loaded = api.load(on_disk(checkpoint, revision, offline, allow_pickles), device=device, dtype=dtype)
    require_bleu(bleu, translations)
    if api.task_kind(loaded) != NextTokenConfig.kind:
        search = search_of(beams, length_penalty, length_formula, None, batch_size, cut) if bleu else None
        compared = None if search is None else translated(loaded, data, held_out, search, translations)
        _measured(loaded, data, held_out, sizes, stride, batch_size, compared, documents=documents, json=json)
        return
    require_pairs(bleu)
    found = [api.evaluate(loaded, data, context=size, stride=stride, mode="documents" if documents else "windows",
                          batch_size=batch_size, part=held_out) for size in sizes]
    if json:
        print_json(found)
        return
    for each in found:
        typer.echo(_line(each))
    typer.echo(f"protocol: {found[-1].protocol.describe()}")


def _measured(loaded: Loaded, data: Path | None, part: HeldOut, sizes: list[int | None], stride: int | None,
              batch_size: int, bleu: Bleu | None, *, documents: bool, json: bool) -> None:
    """Print the metrics of the run's task."""
    from weft import api
    from weft.core.errors import InputError

    if sizes != [None] or stride is not None or documents:
        raise InputError("windows of running text, and this model was trained on another task, whose rows are those of "
                         "its run.", where="--context, --stride, --documents", remedy="Leave them out.")
    found = api.measure(loaded, data, part=part, batch_size=batch_size)
    if json:
        print_json([{**found.named(), "predictions": found.tokens, "unit": found.unit, "bytes": found.bytes,
                     "protocol": found.protocol, **({} if bleu is None else {"bleu": bleu.to_json()})}])
        return
    typer.echo(found.line())
    if bleu is not None:
        typer.echo(bleu.line())
    typer.echo(f"protocol: {found.protocol}")


def held_out_part(name: str | None, data: Path | None) -> HeldOut:
    """Which held-out text ``--part`` names."""
    from weft.core.errors import InputError

    if name is not None and data is not None:
        raise InputError("both a part of the run's held-out text and another text.", where="--part, --data",
                         remedy="Give one of them.")
    if name in (None, "validation"):
        return "validation"
    if name == "test":
        return "test"
    raise InputError(f"{name!r} is not a held-out part of a run.", where="--part",
                     remedy="Give validation or test.")


def numbers_of(text: str | None, option: str) -> list[int | None]:
    """The positive numbers of ``N,N,...``; one None where the option is not given."""
    from weft.core.errors import InputError

    if text is None:
        return [None]
    sizes: list[int | None] = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < 1:
            raise InputError(f"{part!r} is not a positive number of tokens.", where=option,
                             remedy="Give numbers such as 128 or 128,512.")
        sizes.append(int(part))
    return sizes


def _line(found: Evaluation) -> str:
    size = found.protocol.window
    reach = "whole documents" if size is None else f"context {size:,}"
    per_byte = found.bits_per_byte
    bits = "no text" if per_byte is None else f"{per_byte:.4f} bits/byte"
    never = f"; {found.impossible:,} tokens had probability zero" if found.impossible else ""
    return (f"{reach}: perplexity {found.perplexity:.4f} per token, {found.loss:.4f} nats/token, {bits} "
            f"({found.tokens:,} tokens, {found.bytes:,} bytes{never})")
