"""``weft draw``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.closing import word
from weft.cli.options import Common, Overrides, guarded, print_json
from weft.cli.plan import Target

if TYPE_CHECKING:
    from weft.api import Text
    from weft.pictures.gallery import DrawnFiles


@guarded(lambda given:
         f"open {word(given['out'])} in a browser; weft plan {word(given['target'])} counts what is drawn")
def draw(target: Target, overrides: Overrides = None, *,
         out: Annotated[Path, typer.Option("--out", help="Write here; a new folder, for a page and a file of each "
                                           "picture, or a file: .html for the page, .svg or .png for the architecture "
                                           "alone.")] = Path("runs/drawing"),
         text: Annotated[str | None, typer.Option("--text", help="Text to read; its attention maps are "
                                                    "drawn.")] = None,
         text_file: Annotated[Path | None, typer.Option("--text-file", help="Draw the attention maps of this file's "
                                                        "text.")] = None,
         source: Annotated[str | None, typer.Option("--source", help="The source of --text, for a model that reads "
                                                    "one.")] = None,
         png: Annotated[bool, typer.Option("--png", help="Write a PNG of each picture, too.")] = False,
         replace: Annotated[bool, typer.Option("--replace", help="Replace a folder that Weft wrote.")] = False,
         common: Annotated[Common, "threads plugin json revision offline allow_pickles"]) -> None:
    """Draw a model: its architecture, masks and positions.

    A recurrent model is also unrolled in time. With a text, the attention maps of every layer and head are drawn, with
    their entropy and their share on the first tokens.
    """
    common.prepare()
    from weft import api
    from weft.api.examining import require_changeable

    require_changeable(target, overrides or [])
    read = _text(text, text_file, source)
    found = api.draw(str(common.folder(target)), overrides or [], out=out, text=read, png=png, replace=replace)
    if common.json:
        print_json(found)
    else:
        _print(found)


def _text(text: str | None, file: Path | None, source: str | None) -> Text | None:
    """The text to draw; None for none."""
    from weft.api import Text
    from weft.core.errors import InputError

    if text is not None and file is not None:
        raise InputError("--text and --text-file both give a text.", where="--text-file", remedy="Give one of them.")
    if text is None and file is None:
        if source is not None:
            raise InputError("a source without a text.", where="--source", remedy="Give --text, too.")
        return None
    return Text(_content(file) if file is not None else text or "", source)


def _content(file: Path) -> str:
    from weft.core.errors import InputError
    from weft.disk.documents import read_document

    try:
        return read_document(file).decode("utf-8").strip("\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{str(file)!r} cannot be read as text ({reason}).", where="--text-file",
                         remedy="Give a file of UTF-8 text.") from None


def _print(found: DrawnFiles) -> None:
    from weft.cli.text import console, table

    if found.heads:
        rows = table("layer", ">head", ">entropy, nats", ">first token", ">first four", ">learned sink")
        for each in found.heads:
            rows.add_row(each.place, str(each.head), f"{each.entropy:.3f}", f"{each.on_first:.1%}",
                         f"{each.on_first_four:.1%}", f"{each.sink:.1%}")
        console().print(rows)
    typer.echo(f"wrote {found.out}" + (f": {len(found.files)} files" if len(found.files) > 1 else ""))
