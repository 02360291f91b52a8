"""``weft judge``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.closing import word
from weft.cli.compare import watching
from weft.cli.options import Json, Overrides, Plugin, Threads, TrainingTokens, guarded, prepare
from weft.cli.text import console, section, table
from weft.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from weft.judge.judgement import Found, Verdict

STYLES = {"held": "green", "broken": "bold red", "not tried": "dim", "lawful": "bold green", "unlawful": "bold red",
          "not judged": "bold yellow"}
SHOWN = 24
"""Ids of a row that are shown at either end."""


@guarded(lambda given: f"weft judge {word(given['call'] or given['thing'])} --json gives the same to a program")
def judge(
        thing: Annotated[str | None, typer.Argument(metavar="THING", help="A Python file with a model (FILE.py or "
                                                    "FILE.py:NAME), a configuration, a run, a checkpoint, a folder of "
                                                    "transformers, or an endpoint (http://...).")] = None,
        overrides: Overrides = None,
        call: Annotated[str | None, typer.Option("--call", metavar="FILE.py:NAME", help="The model of a file by its "
                                                 "name; by default model.")] = None,
        gives: Annotated[str | None, typer.Option("--gives", help="How a file's output is read: logits, "
                                                  "log-probabilities, next or scores; by default worked out.")] = None,
        test_text: Annotated[Path | None, typer.Option("--test-text", help="A file with the test text; has a model "
                                                       "read it before? A study measures on it.")] = None,
        fresh_text: Annotated[Path | None, typer.Option("--fresh-text", help="Documents of the same kind that no model "
                                                        "can have read, beside those of --test-text.")] = None,
        canaries: Annotated[Path | None, typer.Option("--canaries", help="A file of lines that end in random words and "
                                                      "stand in a text that must not be trained on.")] = None,
        seconds: Annotated[float, typer.Option("--seconds", min=1, help="The most time of a file's verdict.")] = 120.0,
        answer: Annotated[float, typer.Option("--answer", min=1, help="The most seconds of one answer.")] = 30.0,
        memory: Annotated[int, typer.Option("--memory", min=256, help="MiB of addresses of a file's "
                                            "process.")] = 8192,
        unconfined: Annotated[bool, typer.Option("--unconfined", help="Run a file also where the system cannot keep it "
                                                 "from other files and the network.")] = False,
        model: Annotated[str | None, typer.Option("--model", help="The model of an endpoint; by default the first that "
                                                  "it lists.")] = None,
        study: Annotated[Path | None, typer.Option("--study", metavar="BASELINE", help="A study; is it better than "
                                                   "this preset or configuration?")] = None,
        tokens: TrainingTokens = None,
        seeds: Annotated[int, typer.Option("--seeds", min=2, help="Runs of each model; of the study.")] = 5,
        out: Annotated[Path, typer.Option("--out", help="Write here; the folder of a study.")] = Path("runs/judge"),
        threads: Threads = None, plugin: Plugin = None, json: Json = False) -> None:
    """Judge whether something is a language model: one verdict on its laws.

    A file runs in a process of its own, without network and with no files but its own folder. The exit code is 0 if the
    model is lawful, 1 if not, 2 if nothing can be said.
    """
    prepare(plugin)
    from weft import api
    from weft.judge.questions import FileLimits

    changes = [*([thing] if thing and call else []), *(overrides or [])]
    if call is None and thing is None:
        raise InputError("nothing to judge was named.", where="THING", remedy="Give one, such as weft judge model.py.")
    if study is not None:
        if fresh_text or canaries:
            raise InputError("a study trains models of its own, which have read neither.", where="--study",
                             remedy="Ask about --fresh-text and --canaries in a verdict without a study.")
        with watching(json=json) as watch:
            verdict = api.verdict_against(call or str(thing), study, changes, test_text=test_text, tokens=tokens,
                                          runs=seeds, out=out, threads=threads,
                                          plugins=[str(each) for each in plugin or []],
                                          tell=partial(typer.echo, err=json), on_progress=watch)
        _end(verdict, json=json)
        return
    if tokens is not None:
        raise InputError("an option of a study, and there is no study.", where="--tokens",
                         remedy="Name a baseline, such as --study transformer.")
    limits = FileLimits(seconds, answer, memory << 20, threads=threads or FileLimits.threads,
                        confined=not unconfined)
    with console(err=True).status("reading", spinner="line") as status:
        verdict = api.verdict(call or str(thing), changes, gives=gives, limits=limits, test_text=test_text,
                              fresh_text=fresh_text, canaries=canaries, model=model, on_law=status.update)
    _end(verdict, json=json)


def _end(verdict: Verdict, *, json: bool) -> None:
    """Print a verdict and end with its exit code."""
    if json:
        typer.echo(verdict.model_dump_json(indent=2))
    else:
        _print(console(), verdict)
    if verdict.exit_code:
        raise typer.Exit(verdict.exit_code)


def _print(out: Console, verdict: Verdict) -> None:
    from rich.text import Text

    rows = table("law", "outcome", "tried", ">s")
    for law in verdict.laws:
        tried = "; ".join(each for each in (law.tried, law.why) if each)
        rows.add_row(law.name, Text(law.outcome, STYLES[law.outcome]), Text(tried), f"{law.seconds:.1f}")
    section(out, f"the laws of {Path(verdict.thing.path).name}", rows)
    for law in verdict.laws:
        if law.found is not None:
            _print_found(out, law.name, law.found)
    out.print(f"{verdict.verdict} ({verdict.seconds:.1f} s)", style=STYLES[verdict.verdict])
    for line in (verdict.why, verdict.study and verdict.study.sentence):
        if line:
            out.print(line)


def _print_found(out: Console, law: str, found: Found) -> None:
    from rich.padding import Padding

    rows = [" ".join(map(str, row if len(row) <= 2 * SHOWN else (*row[:SHOWN], "...", *row[-SHOWN:])))
            for row in found.input[:4]]
    measured = None if found.measured is None else f"measured {found.measured:.4g}, allowed {found.allowed or 0:.2g}"
    resembles = found.resembles and f"resembles the exploit of the museum: {found.resembles}"
    more = f"and {len(found.input) - 4} more rows" if len(found.input) > 4 else None
    out.print(f"breaks {law}", style="bold red")
    for line in (found.sentence, measured, *(f"ids {row}" for row in rows), more, resembles):
        if line:
            out.print(Padding(line, (0, 0, 0, 2)))
    out.print()
