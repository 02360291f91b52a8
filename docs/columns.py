"""Text that stands in columns, as programs print it, scrolls on a narrow page, where other text and commands break."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

COMMAND = re.compile(r"(?:\. |\$ |(?:weft|python|torchrun|pip|git|cd|export) |make\b)")
"""How the first line of a block of commands begins; the spaces before a comment make no column of it."""
COLUMN = re.compile(r"\S {2,}\S")


def in_columns(text: str) -> bool:
    """Whether at least two lines of a text have columns, and it is not a command."""
    return COMMAND.match(text) is None and sum(bool(COLUMN.search(line)) for line in text.splitlines()) > 1


def _mark(app: Sphinx, tree: nodes.document) -> None:
    """Give every block in columns the class of that name, which `gallery.css` knows."""
    for block in tree.findall(nodes.literal_block):
        if block.get("language", "default") in ("text", "none", "default") and in_columns(block.astext()):
            block["classes"].append("columns")


def setup(app: Sphinx) -> dict[str, bool]:
    """Look at every page when it has been read."""
    app.connect("doctree-read", _mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
