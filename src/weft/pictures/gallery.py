"""All pictures of a model, in sections, and the page that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from weft.core.model import LanguageModel, Model, parameter_count
from weft.core.strict_json import Record
from weft.core.version import VERSION
from weft.drawing.figure import Figure, document, page_rules
from weft.drawing.markup import Markup, annotated, join, tag
from weft.drawing.numbers import fixed, integer, percent
from weft.drawing.tables import Column, folded, table
from weft.pictures.architecture import architecture_of
from weft.pictures.attention import AttentionMap, HeadNumbers, head_numbers, map_figures
from weft.pictures.diagram import figure
from weft.pictures.masks import mask_figures
from weft.pictures.positions import position_figures, schemes_of
from weft.pictures.unrolled import is_recurrent, unrolled

MOST_SCHEMES, MOST_ROWS, LEAST = 12, 24, 230.0
"""Position schemes with weights of their own that are drawn; rows of an open table; width of the words beneath a
drawing."""


@dataclass(frozen=True)
class Section:
    """Pictures of one kind.

    Attributes:
        lead: what is to be seen, in a sentence or two.
    """

    name: str
    heading: str
    lead: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class ReadText:
    """A text that a model has read.

    Attributes:
        tokens: its tokens as text, one for each id.
        source: those of the source; empty without one.
    """

    tokens: tuple[str, ...]
    source: tuple[str, ...]
    maps: tuple[AttentionMap, ...]

    def numbers(self) -> tuple[HeadNumbers, ...]:
        """Entropy and sinks of every head."""
        return tuple(each for found in self.maps for each in head_numbers(found))


@dataclass(frozen=True, eq=False)
class Gallery:
    """The pictures of a model.

    Attributes:
        trained: whether its weights are those of a checkpoint; otherwise they are those that it starts with.
    """

    title: str
    model: Model
    trained: bool
    sections: tuple[Section, ...]
    read: ReadText | None

    def figures(self) -> list[Figure]:
        """Every picture."""
        return [figure for section in self.sections for figure in section.figures]


@dataclass(frozen=True)
class DrawnFiles(Record):
    """The files that `weft.api.draw` wrote.

    Attributes:
        out: the folder or the file.
        files: names of the files; of a single file its own.
        heads: numbers of every attention head over the text; empty without one.
    """

    out: str
    files: tuple[str, ...]
    heads: tuple[HeadNumbers, ...]


def gallery(model: Model, title: str, *, trained: bool, read: ReadText | None = None) -> Gallery:
    """Draw a model.

    Args:
        model: any model; one on the meta device has no weights and is drawn with those that its parts start with.
        trained: whether its weights are those of a checkpoint.
        read: attention maps of a text.
    """
    sections = [Section("architecture", "Architecture", "From the tokens at the bottom to the predictions at the top. "
                        "A dashed frame holds what occurs several times; a wire that passes a box and meets it in a "
                        "sum is the residual path.", (figure(architecture_of(model, title)),))]
    masks = tuple(mask_figures(model))
    if masks:
        sections.append(Section("masks", "Masks", "Rows are queries, columns keys: filled where a query may attend to "
                                "a key, strongest at the query's own token.", masks))
    schemes = schemes_of(model)
    positions = tuple(each for index, placed in enumerate(schemes[:MOST_SCHEMES])
                      for each in position_figures(placed, f"position-{index}"))
    if positions:
        left = len(schemes) - MOST_SCHEMES
        lead = "How the model represents the distance between tokens." + (
            "" if trained else " Learned schemes are drawn with the weights that they start with.")
        more = f" {left} more with weights of their own are not drawn." if left > 0 else ""
        sections.append(Section("positions", "Positions", lead + more, positions))
    if isinstance(model, LanguageModel) and is_recurrent(model):
        sections.append(Section("time", "Unrolled in time", "Each layer's state goes from token to token; a blue arrow "
                                "is a state that grows with them.", (unrolled(model),)))
    if read is not None:
        sections.append(Section("attention", "Attention", "The weights that the model used for this text, by layer and "
                                "head: rows are queries, columns keys; the opacity of a point is the square root of "
                                "its weight.", tuple(map_figures(read.maps))))
    return Gallery(title, model, trained, tuple(sections), read)


def render(found: Gallery) -> str:
    """The page: one file that asks nothing of any other; equal models give equal pages."""
    style = resources.files("weft.pictures").joinpath("style.css").read_text(encoding="utf-8")
    links = [tag("li", None, tag("a", {"href": f"#{each.name}"}, each.heading)) for each in found.sections]
    rows = f"rows of {integer(found.model.config.context)} tokens"
    line = (f"{found.model.config.kind} of {integer(parameter_count(found.model))} parameters, "
            f"{f'trained on {rows}' if found.trained else f'for {rows}, not trained'}.")
    header = tag("header", {"class": "top"}, tag("p", {"class": "kicker"}, "Weft drawing"),
                 tag("h1", None, found.title), tag("p", {"class": "line"}, line))
    contents = tag("nav", {"class": "contents", "aria-label": "Contents"}, tag("ul", None, links))
    return document(f"{found.title} – Weft", page_rules() + style, header, contents,
                    tag("main", None, [_section(each, found.read) for each in found.sections]),
                    tag("footer", None, tag("p", None, f"Drawn by Weft {VERSION}.")))


def _section(section: Section, read: ReadText | None) -> Markup:
    about = read if section.name == "attention" else None
    text, numbers = (Markup(""), Markup("")) if about is None else (join(
        _pieces(f"Text, {len(about.tokens)} tokens", about.tokens),
        _pieces("Source", about.source) if about.source else ""), _numbers(about))
    shown = tag("div", {"class": "figures"}, [_figure(each) for each in section.figures])
    return tag("section", {"id": section.name, "aria-labelledby": f"{section.name}-h"},
               tag("h2", {"id": f"{section.name}-h"}, section.heading),
               tag("p", {"class": "section-lead"}, section.lead), text, shown, numbers)


def _figure(drawing: Figure) -> Markup:
    caption = tag("figcaption", None, drawing.caption) if drawing.caption else ""
    # Wide drawings scroll in a box of their own, so that their words stay as large as all others.
    wide = drawing.width > 420
    room = None if wide else f"width:{max(drawing.width, LEAST):g}px"
    return tag("figure", {"class": "wide" if wide else "shrinks", "id": f"figure-{drawing.name}", "style": room},
               tag("h4", None, drawing.title),
               tag("div", {"class": "over", "tabindex": "0", "role": "region", "aria-label": drawing.title},
                   drawing.inline()) if wide else drawing.inline(), caption)


def _numbers(read: ReadText) -> Markup:
    """Entropy and sinks of every head; folded where there are many."""
    rows = [[each.place, str(each.head), fixed(each.entropy, 3), percent(each.on_first), percent(each.on_first_four),
             percent(each.sink)] for each in read.numbers()]
    columns = [Column("Layer", number=False, wraps=False), Column("Head"), Column("Entropy", "nats"),
               Column("First token"), Column("First four"), Column("Learned sink")]
    numbers = tag("div", {"class": "numbers"}, table(
        "Means over queries: the entropy of a query's weights, and its shares on the first tokens, of the queries "
        "behind these, and on a learned sink.", columns, rows, name="heads"))
    return folded(f"Numbers of {len(rows)} heads", numbers) if len(rows) > MOST_ROWS else numbers


def _pieces(name: str, tokens: Sequence[str]) -> Markup:
    return tag("p", {"class": "tokens"}, f"{name}: ",
               [join(f"{index} ", tag("code", None, annotated(token)), " ") for index, token in enumerate(tokens)])
