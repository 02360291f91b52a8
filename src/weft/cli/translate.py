"""``weft translate``. ``weft eval --bleu``: translations of held-out sources, compared with their targets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from weft.cli.closing import word
from weft.cli.generate import Checkpoint
from weft.cli.options import BatchSize, Common, guarded, print_json

if TYPE_CHECKING:
    from weft.api import Search
    from weft.checkpoints import Loaded
    from weft.decoding import LengthFormula
    from weft.evaluation.bleu import Bleu
    from weft.tasks.token_streams import HeldOut


Beams = Annotated[int | None, typer.Option("--beams", min=1, help="Beams of the search for the most probable "
                                                   "continuation; 1 is greedy decoding, 4 the default.")]
LengthPenalty = Annotated[float | None, typer.Option(
    "--length-penalty", min=0, help="Exponent a of the length by which log-probabilities of beams are divided; see "
                                       "--length-formula; default 0.6.")]
Formula = Annotated[str | None, typer.Option(
    "--length-formula", help="gnmt: divide by ((5 + length) / 6)^a (Wu et al. 2016), the default; power: by "
                             "length^a.")]
Cut = Annotated[bool, typer.Option("--cut", help="Cut sources longer than the encoder's limit, and count them.")]


@guarded(lambda given:
         f"weft eval {word(given['checkpoint'])} --bleu compares its translations with the targets of the run")
def translate(checkpoint: Checkpoint,
              sources: Annotated[Path, typer.Argument(metavar="SOURCES", help="A text file of one source a line.")], *,
              out: Annotated[Path | None, typer.Option("--out", help="Write here; the targets, one a line in a new "
                                                       "file, instead of printing them.")] = None,
              beams: Beams = None, length_penalty: LengthPenalty = None, length_formula: Formula = None,
              max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Most new tokens; by default 50 more than "
                                                                 "the source has.")] = None,
              batch_size: BatchSize = 32, cut: Cut = False, common: Common) -> None:
    """Write the target of each line of a text, with an encoder-decoder, by beam search.

    Where an option is not given, the settings of the model's own generation_config.json apply, and are named."""
    common.prepare()
    from weft import api
    from weft.data.pairs import lines_of
    from weft.disk.ownership import require_free

    if out is not None:
        require_free(out, single=True)
    lines = list(lines_of(sources))
    require_sources(lines, sources)
    loaded = common.load(checkpoint, "translating")
    found = api.translate(loaded, lines, search_of(loaded, beams, length_penalty, length_formula, max_new_tokens,
                                                   batch_size, cut))
    if found.cut:
        typer.echo(f"{found.cut:,} of {len(lines):,} sources were cut to the encoder's limit", err=True)
    if out is not None:
        write_lines(out, found.texts)
    if common.json:
        print_json(found)
    elif out is None:
        typer.echo("\n".join(map(in_one_line, found.texts)))


def search_of(loaded: Loaded, beams: int | None, length_penalty: float | None, length_formula: str | None,
              max_new_tokens: int | None, batch_size: int, cut: bool) -> Search:
    """The search that the options and the model's files describe, and a line about these; an unknown formula is refused
    by `weft.decoding.beam_search`."""
    from weft import api

    search, line = api.search_defaults(loaded, api.Search(
        beams, length_penalty, cast("LengthFormula | None", length_formula), max_new_tokens, batch_size, cut))
    typer.echo(line, err=True, nl=bool(line))
    return search


def require_sources(lines: list[str], path: Path) -> None:
    """Refuse a file without lines, and empty lines. Raises `DataError`: with the place of the first."""
    from weft.core.errors import DataError

    if not lines:
        raise DataError("the file is empty.", where=str(path), remedy="Give one source a line.")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise DataError("the line is empty, and a source has text.", where=f"{path}, line {number}",
                            remedy="Fill it in, or remove it.")


def write_lines(path: Path, texts: tuple[str, ...]) -> None:
    """Write texts to a new file, one a line. Raises `OccupiedError`: something is at ``path``."""
    from weft.disk.atomic import new_file

    with new_file(path) as draft:
        draft.write_text("".join(f"{in_one_line(text)}\n" for text in texts), encoding="utf-8")


def in_one_line(text: str) -> str:
    """A text with spaces for its line ends, so that line i belongs to line i of the sources."""
    return text.replace("\r", " ").replace("\n", " ")


def require_bleu(bleu: bool, translations: Path | None) -> None:
    """Refuse a file for translations where none are made, or one that stands.

    Raises:
        InputError: there is no ``--bleu``.
        OccupiedError: something is at the path.
    """
    from weft.core.errors import InputError
    from weft.disk.ownership import require_free

    if translations is None:
        return
    if not bleu:
        raise InputError("a file for translations, and none are made.", where="--translations",
                         remedy="Give --bleu too.")
    require_free(translations, single=True)


def require_pairs(bleu: bool) -> None:
    """Refuse ``--bleu`` for a model of running text. Raises `InputError`: it was given."""
    from weft.core.errors import InputError

    if bleu:
        raise InputError("BLEU compares translations, and this model was trained on running text.", where="--bleu",
                         remedy="Leave it out, or give a model that was trained on pairs.")


def translated(loaded: Loaded, data: Path | None, part: HeldOut, search: Search, translations: Path | None) -> Bleu:
    """Translate held-out sources, and write the results to a file if one is named."""
    from weft import api

    found = api.measure_bleu(loaded, data, part=part, search=search)
    if found.translated.cut:
        typer.echo(f"{found.translated.cut:,} sources were cut to the encoder's limit", err=True)
    if translations is not None:
        write_lines(translations, found.translated.texts)
    return found.bleu
