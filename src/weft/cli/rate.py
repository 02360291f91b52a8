"""``weft rate``: ratings of models from pairwise preferences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.closing import Given, word
from weft.cli.options import Json, Seed, guarded, print_json
from weft.cli.text import console, section, table

if TYPE_CHECKING:
    from weft.comparison.ratings import BradleyTerry, Elo, Ratings

METHODS = ("bradley-terry", "elo")


def _after(given: Given) -> str:
    file = word(given["file"])
    return (f"weft rate {file} --method bradley-terry gives ratings that do not depend on the order of the games"
            if given["method"] == "elo" else f"weft rate {file} --method elo gives late games more weight")


@guarded(_after)
def rate(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV, TSV or JSONL file with one game a line.")],
        method: Annotated[str, typer.Option("--method", help="bradley-terry: maximum likelihood, whatever the order "
                                            "of the games; or elo: online, late games count more.")] = METHODS[0],
        scale: Annotated[float, typer.Option("--scale", help="Difference of ratings at which one model wins ten times "
                                             "as often as the other.")] = 400.0,
        start: Annotated[float, typer.Option("--start", help="Elo: every model's first rating; Bradley-Terry: the "
                                             "mean of the ratings.")] = 1000.0,
        k: Annotated[float | None, typer.Option("--k", help="Elo: the most that a game can move a rating; by default "
                                                "4.")] = None,
        orders: Annotated[int | None, typer.Option("--orders", help="Elo: take the median over so many shuffled "
                                                   "orders; by default the file's order alone.")] = None,
        virtual_ties: Annotated[float | None, typer.Option("--virtual-ties", help="Bradley-Terry: add so many ties of "
                                                           "each model with an opponent at --start; by default "
                                                           "none.")] = None,
        resamples: Annotated[int, typer.Option("--resamples", help="Bootstrap samples of the games, for the "
                                               "intervals; 0 for none.")] = 1000,
        confidence: Annotated[float, typer.Option("--confidence", help="Of the intervals.")] = 0.95,
        seed: Seed = 0,
        model_a_field: Annotated[str, typer.Option("--model-a-field", help="Field of the first model.")] = "model_a",
        model_b_field: Annotated[str, typer.Option("--model-b-field", help="Field of the second.")] = "model_b",
        winner_field: Annotated[str | None, typer.Option("--winner-field", help="Field of the winner: one of the two "
                                                         "names, model_a, model_b, or tie; by default winner, or the "
                                                         "three fields winner_model_a, winner_model_b and "
                                                         "winner_tie.")] = None,
        out: Annotated[Path | None, typer.Option("--out", help="Write here; the ratings, in a new JSON file.")] = None,
        json: Json = False) -> None:
    """Rate models by pairwise preferences: Bradley-Terry or Elo."""
    from weft import api
    from weft.core.strict_json import dumps
    from weft.disk.atomic import new_file
    from weft.disk.ownership import require_free

    if out is not None:
        require_free(out, single=True)
    chosen = _method(method, scale, start, k, orders, virtual_ties)
    found = api.rate(file, chosen, fields=api.GameFields(model_a_field, model_b_field, winner_field),
                     resampling=api.Resampling(resamples, confidence, seed))
    if out is not None:
        with new_file(out) as draft:
            draft.write_text(dumps(found, indent=2) + "\n", encoding="utf-8")
    if json:
        print_json(found)
        return
    _show(found)


def _method(name: str, scale: float, start: float, k: float | None, orders: int | None,
            virtual_ties: float | None) -> Elo | BradleyTerry:
    """The method with its numbers; those of the other one are refused. Raises `InputError`: there is no such method, or
    a number is not one of its."""
    from weft import api
    from weft.core.errors import InputError, nearest
    from weft.core.strict_json import without_none

    if name not in METHODS:
        raise InputError(f"no method {name!r}.", where="--method", remedy=nearest(name, METHODS))
    of_elo, of_other = without_none({"--k": k, "--orders": orders}), without_none({"--virtual-ties": virtual_ties})
    foreign = sorted(of_other if name == "elo" else of_elo)
    if foreign:
        other = METHODS[0] if name == "elo" else "elo"
        raise InputError(f"a number of the method {other}, and the method is {name}.", where=foreign[0],
                         remedy=f"Leave it out, or give --method {other}.")
    if name == "elo":
        return api.Elo(4.0 if k is None else k, scale, start, orders or 0)
    return api.BradleyTerry(scale, start, virtual_ties or 0.0)


def _show(found: Ratings) -> None:
    out, places = console(), {model.name: place for place, model in enumerate(found.models, 1)}
    rows = table(">", "model", ">rating", ">interval", ">games", ">points", ">rank", "overlaps")
    for place, model in enumerate(found.models, 1):
        rating = model.rating
        interval = "" if rating.low is None else f"{rating.low:.1f} to {rating.high:.1f}"
        rows.add_row(str(place), model.name, f"{rating.mean:.1f}", interval, f"{model.games:,}",
                     f"{model.points / model.games:.1%}", str(model.rank),
                     ", ".join(str(places[other]) for other in model.overlaps) or "none")
    section(out, f"{found.method}: {found.games:,} games ({found.ties:,} tied), {len(found.models)} models", rows)
    for line in _remarks(found):
        out.print(line)


def _remarks(found: Ratings) -> list[str]:
    settings = found.settings
    lines = []
    if found.method == "elo" and settings["orders"]:
        lines.append(f"Median over {settings['orders']:,} shuffled orders of the games.")
    elif found.method == "elo":
        lines.append("Elo ratings depend on the order of the games, which is the file's; late games count more.")
    if settings["resamples"]:
        lines.append(f"Intervals: {settings['confidence']:.0%}, of {settings['resamples']:,} bootstrap samples of the "
                     "games. Rank: 1 + models whose intervals lie wholly above.")
    if found.left_out:
        lines.append(f"{found.left_out:,} samples without finite ratings are left out.")
    return lines
