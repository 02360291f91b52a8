"""``weft predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.benchmark import showing_progress
from weft.cli.closing import word
from weft.cli.generate import Checkpoint
from weft.cli.options import BatchSize, Common, guarded, print_json


@guarded(lambda given: f"weft eval {word(given['checkpoint'])} says how good the model's predictions are")
def predict(checkpoint: Checkpoint,
            file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON Lines, a JSON array, CSV, TSV or Parquet; "
                                                 "of any other file each line is a text.")], *,
            out: Annotated[Path, typer.Option("--out", help="Write here; a new file: .jsonl, .csv, .tsv or .parquet.")],
            text_field: Annotated[str | None, typer.Option(
                "--text-field", help="The field that holds the text; by default that of the model's run, or "
                "text.")] = None,
            second_field: Annotated[str | None, typer.Option(
                "--second-field", help="The field of a second text, for a model trained on pairs.")] = None,
            words_field: Annotated[str | None, typer.Option(
                "--words-field", help="The field of the words, for a model that gives each word a class.")] = None,
            vectors: Annotated[bool, typer.Option(
                "--vectors", help="Predict vectors: the mean of the last hidden vectors over the tokens, of length "
                "1.")] = False,
            max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Most new tokens; default 200, or 50 more "
                                                               "than the source of a translation has.")] = None,
            beams: Annotated[int | None, typer.Option("--beams", min=1, help="Beams of the search for the most "
                                                      "probable continuation; for translations, default 4.")] = None,
            batch_size: BatchSize = 32, common: Common) -> None:
    """Predict for every record of a file: a class, values, a translation, a continuation or a vector.

    The model decides which, and the classes of words where it gives these. Records keep their fields and order. The
    same command goes on where it was stopped."""
    common.prepare()
    from weft import api

    asked = api.PredictionSettings(text_field, second_field, words_field, vectors, max_new_tokens, beams, batch_size)
    loaded = common.load(checkpoint)
    with showing_progress("records") as told:
        found = api.predict(loaded, file, out, asked, told=told)
    if common.json:
        print_json(found)
        return
    before = f", {found.before:,} of them before" if found.before else ""
    cut = f"; {found.cut:,} were cut to the model's context" if found.cut else ""
    typer.echo(f"wrote {found.out}: {found.kind} of {found.records:,} records{before}{cut}")
