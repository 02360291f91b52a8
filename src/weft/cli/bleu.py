"""``weft eval --bleu``: translations of held-out sources, compared with their targets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from weft.cli.translate import write_lines

if TYPE_CHECKING:
    from weft.api import Search
    from weft.checkpoints import Loaded
    from weft.evaluation.bleu import Bleu
    from weft.tasks.material import HeldOut


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
