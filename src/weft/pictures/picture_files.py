"""Drawings on disk: a folder with a page and a file for each picture, or one file."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from weft.core.errors import InputError, MissingExtra
from weft.core.strict_json import dumps
from weft.disk.atomic import made, new_file, replacing
from weft.disk.manifest import MANIFEST_FILE, write_manifest
from weft.disk.ownership import by_manifest, require_free
from weft.pictures.gallery import DrawnFiles, Gallery, render

PAGE, NUMBERS = "index.html", "attention.json"
SINGLE = (".html", ".svg", ".png")
"""Suffixes by which ``out`` names a file: the page, or the architecture alone."""
ZOOM = 2
"""Pixels of a PNG for each unit of a drawing, in each direction."""


def require_writable(out: Path, *, png: bool = False, replace: bool = False) -> None:
    """Check, before anything is computed, that a drawing may be written.

    Raises:
        OccupiedError: something is in the way that is not replaced.
        InputError: a single file is to be of two formats, or to be replaced.
        MissingExtra: PNG files need a package that is not installed.
    """
    single = out.suffix in SINGLE
    if single and png:
        raise InputError(f"PNG files of every picture are for a folder, and {out.name!r} is one file.", where="out",
                         remedy="Give a folder, or leave out --png and name the file .png.")
    if single and replace:
        raise InputError(f"{out.name!r} is a single file, which nothing proves to be Weft's.", where="replace",
                         remedy="Give a folder, or delete the file first.")
    if png or out.suffix == ".png":
        _converter()
    require_free(out, single=single, proof=by_drawing, replace=replace)


def by_drawing(folder: Path) -> list[str]:
    """The proof of a folder with a drawing: a manifest lists all of its files, and its page is among them. Checkpoints
    have manifests, too."""
    problems = by_manifest(folder)
    return problems or ([] if (folder / PAGE).is_file() else [f"it has no {PAGE} of a drawing"])


def write(found: Gallery, out: Path, *, png: bool = False, replace: bool = False) -> DrawnFiles:
    """Write the pictures of a model.

    Args:
        out: a folder, for a page ``index.html``, an SVG of each picture and the numbers of attention heads; a file
            ``.html``, for the page alone; or a file ``.svg`` or ``.png``, for the architecture alone.
        png: a PNG beside each SVG in the folder.
        replace: replace a folder whose manifest proves that Weft wrote all of its files.

    Raises:
        OccupiedError, InputError, MissingExtra: as `require_writable`.
    """
    require_writable(out, png=png, replace=replace)
    heads = () if found.read is None else found.read.numbers()
    if out.suffix in SINGLE:
        with made(out.parent), new_file(out) as draft:
            draft.write_bytes(_single(found, out.suffix))
        return DrawnFiles(str(out), (out.name,), heads)
    with replacing(out, proof=by_drawing if replace else None) as folder:
        (folder / PAGE).write_text(render(found), encoding="utf-8")
        for figure in found.figures():
            svg = figure.alone()
            (folder / f"{figure.name}.svg").write_text(svg, encoding="utf-8")
            if png:
                (folder / f"{figure.name}.png").write_bytes(to_png(svg))
        if heads:
            (folder / NUMBERS).write_text(dumps(heads, indent=1) + "\n", encoding="utf-8")
        files = tuple(sorted(path.name for path in folder.iterdir()))
        write_manifest(folder)
    return DrawnFiles(str(out), (*files, MANIFEST_FILE), heads)


def _single(found: Gallery, suffix: str) -> bytes:
    if suffix == ".html":
        return render(found).encode()
    svg = found.figures()[0].alone()
    return svg.encode() if suffix == ".svg" else to_png(svg)


def to_png(svg: str) -> bytes:
    """A drawing as PNG, in light colours. Raises `MissingExtra`: the converter is not installed."""
    made: bytes = bytes(_converter()(svg_string=svg, zoom=ZOOM))
    return made


def _converter() -> Any:
    try:
        return importlib.import_module("resvg_py").svg_to_bytes
    except ImportError:
        raise MissingExtra("resvg-py", "draw", "drawings as PNG") from None
