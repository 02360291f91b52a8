"""A drawing as SVG: part of a page, which gives it its colours, or a file of its own with both themes in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from weft.drawing.markup import Child, Markup, tag
from weft.drawing.palette import DARK, LIGHT, MODELS_DARK, MODELS_LIGHT

FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Liberation Sans",Arial,sans-serif'

RULES = (
    f"text{{font-family:{FONT};font-size:11px;fill:var(--quiet);font-variant-numeric:tabular-nums}}"
    ".name,.title{fill:var(--ink)}.title{font-size:12px;font-weight:600}.head{fill:var(--ink);font-weight:600}"
    ".box{fill:var(--raised);stroke:var(--firm);stroke-width:1}"
    ".thin{fill:var(--paper);stroke:var(--firm);stroke-width:1}"
    ".frame{fill:none;stroke:var(--firm);stroke-width:1;stroke-dasharray:4 3}"
    ".wire{fill:none;stroke:var(--ink);stroke-width:1.2}.tip-mark{fill:var(--ink);stroke:none}"
    ".sum{fill:var(--paper);stroke:var(--ink);stroke-width:1.2}"
    ".memory{fill:none;stroke:var(--m0);stroke-width:1.6}.memory-mark{fill:var(--m0);stroke:none}"
    ".edge{fill:none;stroke:var(--firm);stroke-width:1}"
    ".grid{stroke:var(--hairline)}.base,.zero{stroke:var(--firm);fill:none}"
    ".mean{stroke:var(--c);stroke-width:1.6;stroke-linejoin:round;fill:none}.leader{fill:none;stroke:var(--firm);"
    "stroke-width:.6;opacity:.7}.mark{stroke:var(--c);stroke-width:1.4;fill:var(--c)}"
    ".mark.hollow{fill:var(--paper)}.lit{fill:var(--m0)}.own{fill:var(--ink)}"
    ".unlit{fill:var(--raised)}.dots{fill:var(--c)}")
"""The classes of diagrams, grids and curves, with colours by their names in the palette."""
PAPER = ".paper{fill:var(--paper)}"
"""Of the background of a file."""


@final
@dataclass(frozen=True)
class Figure:
    """A drawing.

    Attributes:
        name: of its file and of its elements, unique in the page.
        title: what it is, in a line.
        description: what is to be seen, for those who cannot see it.
        width: in units of the drawing, which are pixels in a file of its own.
        body: the markup inside.
        caption: beneath it on a page.
    """

    name: str
    title: str
    description: str
    width: float
    height: float
    body: Markup
    caption: Child = ""

    def inline(self) -> Markup:
        """The drawing for a page that has `RULES` and the palette; never wider than it was drawn."""
        return self._svg({"style": f"width:{self.width:g}px"}, Markup(""))

    def alone(self) -> str:
        """The drawing as a file: light, and dark where the system asks for it. Converters that know no media queries
        read the light one."""
        used = frozenset(" ".join(["paper", *re.findall(r'class="([^"]*)"', self.body)]).split())
        style = tag("style", None, Markup(_coloured(LIGHT, MODELS_LIGHT, used) + "@media (prefers-color-scheme:dark){"
                                          + _coloured(DARK, MODELS_DARK, used) + "}"))
        paper = tag("rect", {"class": "paper", "width": self.width, "height": self.height})
        size: dict[str, str | float] = {"xmlns": "http://www.w3.org/2000/svg", "width": self.width,
                                        "height": self.height}
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + self._svg(size, Markup(style + paper)) + "\n"

    def _svg(self, attributes: Mapping[str, str | float], before: Markup) -> Markup:
        return tag("svg", {**attributes, "viewBox": f"0 0 {self.width:g} {self.height:g}", "role": "img",
                           "class": "figure", "aria-labelledby": f"{self.name}-t {self.name}-d"},
                   tag("title", {"id": f"{self.name}-t"}, self.title),
                   tag("desc", {"id": f"{self.name}-d"}, self.description), before, self.body)


def page_rules() -> str:
    """`RULES` for the drawings of a page, and for nothing else on it."""
    return "".join(",".join(f".figure {selector}" for selector in selectors.split(",")) + f"{{{body}}}"
                   for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", RULES))


def _coloured(names: Mapping[str, str], models: tuple[str, ...], used: frozenset[str]) -> str:
    """Those of `RULES` that a drawing with the classes ``used`` needs, with colours in place of the palette's names:
    not every converter knows variables."""
    colours = {**names, **{f"m{index}": colour for index, colour in enumerate(models)}}
    rules = [(selector, body) for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", RULES + PAPER)
             for selector in selectors.split(",")]
    found = [(selector, ";".join(part for part in body.split(";") if "var(--c)" not in part))
             for selector, body in rules]
    found += [(f".m{index} {selector}", body.replace("--c", f"--m{index}"))
              for index in range(len(models)) for selector, body in rules if "var(--c)" in body]
    text = "".join(f"{selector}{{{body}}}" for selector, body in found
                   if body and used.issuperset(re.findall(r"\.([\w-]+)", selector)))
    return re.sub(r"var\(--(\w+)\)", lambda match: colours[match[1]], text)
