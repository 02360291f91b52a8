"""Equations as MathML, written while the pages are built: a page asks no host for a script to set them."""

from __future__ import annotations

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

CLAUSE = re.compile(r",\s*\\q?quad\s+")
"""Between the clauses of an equation, which stand beside one another where there is room."""


def inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write an equation within a line."""
    self.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def display(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write an equation on lines of its own, each clause by itself; one wider than the page scrolls."""
    found = "".join(tex2mathml(each, as_block=True) for each in CLAUSE.split(node.astext()))
    self.body.append(f'<div class="equation" tabindex="0" role="region" aria-label="Equation">{found}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer the renderer under the name ``mathml``."""
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
