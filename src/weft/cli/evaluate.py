"""``weft eval``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from weft.cli.benchmark import run_benchmark
from weft.cli.closing import word
from weft.cli.evaluation_text import show_evaluations
from weft.cli.generate import Checkpoint
from weft.cli.options import BatchSize, Common, Context, guarded, print_json
from weft.cli.text import Lengths, lengths_of
from weft.cli.translate import Beams, Cut, Formula, LengthPenalty, require_bleu, require_pairs, search_of, translated

Division: TypeAlias = Literal["file", "line", "paragraph"]
GIVE_TASK = "Give a kind such as mqar, or '{kind: mqar, pairs: 8}'."
OF_TEXT = (("--stride", "--part", "--lengths", "--bleu", "--documents", "--by-document", "--divide-by"),
           "a benchmark does not have this option.",
           "Leave it out; a benchmark's own settings stand in --task '{kind: ..., ...}'.")
NOT_OF_ROWS = (("--context", "--stride", "--documents", "--by-document", "--divide-by", "--data", "--bleu"),
               "an option of text, while the task makes its rows itself.",
               "Leave it out; --lengths gives the tokens of a row.")
OF_BENCHMARKS = (("--limit", "--out", "--run-programs", "--run-code", "--against"),
                 "an option of benchmarks, and none is run.", "Leave it out, or name a benchmark with --task.")
"""Options that are refused, with what is said: those that a benchmark does not have, those that rows which a task makes
itself do not, and those that only benchmarks have."""

if TYPE_CHECKING:
    from weft.checkpoints import Loaded
    from weft.evaluation.bleu import Bleu
    from weft.tasks.token_streams import HeldOut


@guarded(lambda given: f"weft eval {word(given['checkpoint'])} --by-document lists documents, weft generate "
         f"{word(given['checkpoint'])} --prompt TEXT writes with the model")
def evaluate(checkpoint: Checkpoint, *,
             data: Annotated[Path | None, typer.Option("--data", help="A text file or folder; read with the "
                                                       "run's settings; by default the text that the run held "
                                                       "out.")] = None,
             part: Annotated[str | None, typer.Option("--part", help="Part of the text; of what the run held out, "
                                                      "validation (default) or test.")] = None,
             context: Context = None, lengths: Lengths = None,
             stride: Annotated[int | None, typer.Option("--stride", help="Tokens from one window to the next.")] = None,
             documents: Annotated[bool, typer.Option("--documents", help="Evaluate whole documents, the state "
                                                     "carried through.")] = False,
             by_document: Annotated[bool, typer.Option("--by-document", help="Also print one row for each document of "
                                                       "the text.")] = False,
             divide_by: Annotated[str | None, typer.Option(
                 "--divide-by", help="What is a document of --data: file, line or paragraph; by default as in the "
                 "model's run.")] = None,
             batch_size: BatchSize = 8,
             bleu: Annotated[bool, typer.Option("--bleu", help="Also translate the sources of pairs, and compare with "
                                                "the targets (extra bleu).")] = False,
             beams: Beams = None, length_penalty: LengthPenalty = None, length_formula: Formula = None,
             cut: Cut = False, translations: Annotated[Path | None, typer.Option(
                 "--translations", help="With --bleu, write them to this new file, one a line.")] = None,
             task: Annotated[str | None, typer.Option("--task", help="A benchmark (mmlu, lambada, sst2, cola, mbpp, "
                                                      "lm-eval:NAME) on --data, or a task on rows with answers: its "
                                                      "kind, or '{kind: mqar, pairs: 8}'; by default the "
                                                      "run's.")] = None,
             against: Annotated[list[Path] | None, typer.Option(
                 "--against", help="With a benchmark: another checkpoint that is asked the same; every two models are "
                 "compared. May be repeated.")] = None,
             limit: Annotated[int | None, typer.Option("--limit", min=1, help="Use only so many requests of each part "
                                                       "of a benchmark.")] = None,
             run_programs: Annotated[bool, typer.Option("--run-programs", help="Allow a benchmark to run programs that "
                                                        "the model writes, on this machine.")] = False,
             run_code: Annotated[list[Path] | None, typer.Option(
                 "--run-code", help="A file of Python, or a folder of them, that a task of lm-eval may run, "
                 "unconfined; can be repeated.")] = None,
             out: Annotated[Path | None, typer.Option("--out", help="Write here; a benchmark's scores and each "
                                                      "request's result, in a new JSON file.")] = None,
             common: Common) -> None:
    """Measure a model: perplexity and bits per byte of held-out data, the metrics of its run's task, or a benchmark."""
    common.prepare()
    from weft import api
    from weft.tasks.next_token import NextTokenConfig

    measured_at, division = lengths_of(lengths), division_named(divide_by)
    asked, json, folder = task_of(task), common.json, common.folder(checkpoint)
    given = {"--context": context, "--stride": stride, "--part": part, "--lengths": lengths, "--bleu": bleu,
             "--documents": documents, "--by-document": by_document, "--divide-by": divide_by, "--data": data,
             "--limit": limit, "--out": out, "--run-programs": run_programs, "--run-code": run_code or None,
             "--against": against or None}
    if asked is not None and api.is_benchmark(asked):
        refuse(given, *OF_TEXT)
        others = [replace(common, revision=None).folder(each) for each in against or ()]
        run_benchmark([folder, *others], asked, data, common, context=context, batch_size=batch_size, limit=limit,
                      out=out, run_programs=run_programs, run_code=run_code or ())
        return
    refuse(given, *OF_BENCHMARKS)
    held_out = held_out_part(part, data)
    loaded = api.load(folder, device=common.device, dtype=common.dtype)
    require_bleu(bleu, translations)
    if task is not None or (lengths is not None and api.task_kind(loaded) in api.row_kinds()):
        refuse(given, *NOT_OF_ROWS)
        _rows(loaded, asked, measured_at, held_out, batch_size, json=json)
        return
    sizes = windows_of(context, measured_at)
    plain = (data is None and held_out == "validation" and sizes == [None] and stride is None and not documents
             and not by_document and divide_by is None)
    if api.task_kind(loaded) != NextTokenConfig.kind or (plain and not bleu and api.mixes(loaded)):
        search = search_of(loaded, beams, length_penalty, length_formula, None, batch_size, cut) if bleu else None
        compared = None if search is None else translated(loaded, data, held_out, search, translations)
        _measured(loaded, data, held_out, sizes, stride, batch_size, compared, json=json,
                  documents=documents or by_document or divide_by is not None)
        return
    require_pairs(bleu)
    found = [api.evaluate(loaded, data, context=size, stride=stride, mode="documents" if documents else "windows",
                          batch_size=batch_size, part=held_out, documents=division) for size in sizes]
    if json:
        rows = [{"by_document": each.documents} if by_document else {} for each in found]
        print_json([{**each.to_json(), **more} for each, more in zip(found, rows, strict=True)])
        return
    show_evaluations(found, by_document=by_document)


def _rows(loaded: Loaded, task: str | dict[str, Any] | None, lengths: list[int | None], part: HeldOut,
          batch_size: int, *, json: bool) -> None:
    """Print the metrics of a task on rows with answers, by length."""
    from weft import api

    found = [(length, api.measure(loaded, part=part, batch_size=batch_size, task=task, length=length))
             for length in lengths]
    if json:
        print_json([{**each.named(), "length": length, "predictions": each.tokens, "unit": each.unit,
                     "protocol": each.protocol} for length, each in found])
        return
    for length, each in found:
        typer.echo(("" if length is None else f"length {length:,}: ") + each.line())
    typer.echo(f"protocol: {found[-1][1].protocol}")


def task_of(text: str | None) -> str | dict[str, Any] | None:
    """The task that ``--task`` gives: its kind, or its fields."""
    from weft.core.errors import InputError
    from weft.disk.documents import Unreadable
    from weft.disk.yaml_documents import parse_yaml

    if text is None:
        return None
    try:
        found = parse_yaml(text)
    except Unreadable as error:
        raise InputError(f"{error}.", where="--task", remedy=GIVE_TASK) from None
    if isinstance(found, str | dict):
        return found
    raise InputError(f"{text!r} is neither a kind of task nor its fields.", where="--task", remedy=GIVE_TASK)


def refuse(given: Mapping[str, object], options: Sequence[str], what: str, remedy: str) -> None:
    """Refuse some of the options. Raises `InputError`: one of them is given."""
    from weft.core.errors import InputError

    if names := [name for name in options if given[name] is not None and given[name] is not False]:
        raise InputError(what, where=", ".join(names), remedy=remedy)


def _measured(loaded: Loaded, data: Path | None, part: HeldOut, sizes: list[int | None], stride: int | None,
              batch_size: int, bleu: Bleu | None, *, documents: bool, json: bool) -> None:
    """Print the metrics of the run's task."""
    from weft import api
    from weft.core.errors import InputError

    if sizes != [None] or stride is not None or documents:
        raise InputError("windows of running text, and this model was trained on another task, whose rows are those of "
                         "its run.", where="--context, --lengths, --stride, --documents, --by-document, "
                         "--divide-by", remedy="Leave them out.")
    found = api.measure(loaded, data, part=part, batch_size=batch_size)
    if json:
        print_json([{**found.named(), "predictions": found.tokens, "unit": found.unit, "bytes": found.bytes,
                     "protocol": found.protocol, **({} if bleu is None else {"bleu": bleu.to_json()})}])
        return
    typer.echo(found.line())
    if bleu is not None:
        typer.echo(bleu.line())
    typer.echo(f"protocol: {found.protocol}")


def division_named(name: str | None) -> Division | None:
    """The division of a text into documents that ``--divide-by`` names. Raises `InputError`: a word that names none."""
    from weft.core.errors import InputError, nearest

    known: dict[str, Division] = {"file": "file", "line": "line", "paragraph": "paragraph"}
    if name is None or name in known:
        return None if name is None else known[name]
    raise InputError(f"{name!r} is no way to divide a text into documents.", where="--divide-by",
                     remedy=nearest(name, known))


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
    raise InputError(f"{name!r} is not a held-out part of a run.", where="--part", remedy="Give validation or test.")


def windows_of(context: int | None, lengths: list[int | None]) -> list[int | None]:
    """The tokens of windows to evaluate with, from the options of one and of several. Raises `InputError`: both are
    given."""
    from weft.core.errors import InputError

    if context is not None and lengths != [None]:
        raise InputError("both one length of windows and several.", where="--context, --lengths",
                         remedy="Give one of them.")
    return lengths if context is None else [context]
