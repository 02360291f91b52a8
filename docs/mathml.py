"""Equations as MathML, written while the pages are built: a page asks no host for a script to set them."""

from __future__ import annotations

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

CLAUSE = re.compile(r",\s*\\q?quad\s+")
"""Between the clauses of an equation, which stand beside one another where there is room."""
ACCENT = re.compile(r'<munderover>\s*(<mi>[^<]+</mi>)((?:(?!<munderover>).)*?)(<mo stretchy="false">[^<]</mo>)\s*'
                    r"</munderover>", re.DOTALL)
"""An accented letter with an index, which docutils puts below the letter as if it were a limit of a sum."""
BARE = re.compile(r"(\\(?:sin|cos|tanh|log|ln|exp|max|min))(?:\s+(?=[a-zA-Z0-9])|\s*(?=\\(?!left)))")
"""A function whose argument has no brackets and would touch its name."""
NAMED = re.compile(r"(?<=[a-zA-Z0-9}])\s*(?=\\operatorname)")
"""Before a function that would touch what it is multiplied by."""


def _mathml(tex: str, as_block: bool = False) -> str:
    spaced = NAMED.sub(r"\\,", BARE.sub(r"\1\\,", tex))
    return ACCENT.sub(r'<msub><mover accent="true">\1\3</mover>\2</msub>', tex2mathml(spaced, as_block=as_block))


def inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write an equation within a line."""
    self.body.append(_mathml(node.astext()))
    raise nodes.SkipNode


def display(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write an equation on lines of its own, each clause by itself; one wider than the page scrolls."""
    found = "".join(_mathml(each, as_block=True) for each in CLAUSE.split(node.astext()))
    self.body.append(f'<div class="equation" tabindex="0" role="region" aria-label="Equation">{found}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer the renderer under the name ``mathml``."""
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
