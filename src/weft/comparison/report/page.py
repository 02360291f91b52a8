"""The page: sections in their order, style and script inside it, and a policy that forbids every request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import final

from weft.comparison.report import (
    context_value,
    details,
    differences,
    extrapolation,
    gaps,
    portraits,
    quality_cost,
    ranking,
    sheets,
    study_sentences,
    training,
)
from weft.comparison.report.view import View
from weft.comparison.study_result import StudyResult
from weft.comparison.study_settings import UNNAMED
from weft.drawing.figure import base_style, meta, page_rules, style_of
from weft.drawing.marks import swatches
from weft.drawing.markup import Child, Markup, join, tag
from weft.drawing.numbers import confidence, integer, moment


@final
@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        short: its name in the table of contents.
        lead: what is to be seen, in a sentence or two, which may depend on the study.
    """

    name: str
    short: str
    heading: str
    lead: str | Callable[[View], Markup]
    content: Callable[[View], Markup]


SECTIONS = (
    Section("worth", "Quality and cost", "Quality against cost", quality_cost.lead, quality_cost.panels),
    Section("results", "Results", "Results", "Lower bits per byte are better. Two models share a letter exactly where "
            "the study does not tell them apart.", lambda view: join(ranking.ranking(view), sheets.sheets(view))),
    Section("models", "Models", "The models", "Read from their configurations; tokens rise from the bottom.",
            portraits.models),
    Section("differences", "Differences", "How sure are the differences?", differences.lead, differences.forest),
    Section("training", "Training", "Training", training.curves_lead,
            lambda view: join(training.curves(view), extrapolation.beyond(view))),
    Section("gaps", "Order", "Does the order change during training?", gaps.lead, gaps.gaps),
    Section("tuning", "Tuning", "Learning rates", training.rates_lead, training.rates),
    Section("context", "Context", "What context is worth",
            "How well a token is predicted by the number of tokens before it, and how the figure changes with the "
            "length of the window in evaluation.", context_value.context),
    Section("cost", "Cost", "What it costs", context_value.cost_lead, lambda view: join(
        tag("div", {"class": "panels"}, context_value.decoding(view), context_value.dots(view)),
        context_value.decoding_numbers(view))),
    Section("reach", "Reach", "What this study can show", "What was known before its runs, and "
            "what the spread of its runs says.", differences.reach),
    Section("samples", "Samples", "Samples", "Unselected, and no measure of quality: they show what the figures feel "
            "like.", details.samples),
    Section("runs", "Runs", "Runs", "", details.runs),
    Section("repeat", "Repeat", "Repeat it", details.repeat_lead, details.repeat),
    Section("protocol", "Protocol", "Protocol", "", details.protocol),
    Section("data", "Data", "Data", "", details.data),
    Section("machine", "Machine", "Machine", "", details.machine),
)
ADDED = Section("added", "Added", "What was added", "The study has grown; runs that still count were kept.",
                details.additions)
NOTES = Section("notes", "Notes", "Notes", "What a reader must know to judge.", details.notes)


def render(result: StudyResult) -> str:
    """The report: one file of HTML that asks nothing of any other; equal results give equal pages."""
    view = View(result)
    sections = SECTIONS + ((ADDED,) if result.additions else ()) + ((NOTES,) if result.notes else ())
    return whole_page(
        _title(result), tag("a", {"class": "skip", "href": "#verdict"}, "Skip to the findings"),
        swatches(view.styles.values()), _header(view), _bar(view, sections), tag("main", {"id": "main"}, tag(
            "section", {"id": "verdict", "aria-labelledby": "verdict-h"}, tag("h2", {"id": "verdict-h"}, "Findings"),
            tag("div", {"class": "verdict"}, study_sentences.verdict(view))),
            [_section(each, view) for each in sections]),
        tag("footer", None, tag("p", None, f"Made by Weft {result.machine.weft} from study ", tag(
            "code", None, result.study_sha256[:12]), f", {moment(result.finished or result.started)}.")))


def whole_page(title: str, *body: Child) -> str:
    """A page of HTML with the style and the script of reports inside it, which asks nothing of any other file."""
    lines = map(str.strip, (resources.files("weft.comparison.report") / "script.js").read_text("utf-8").splitlines())
    script = "\n".join(line for line in lines if line and not line.startswith("//"))
    style = Markup(base_style() + page_rules() + style_of("weft.comparison.report", "style.css"))
    head = tag("head", None, meta(script), tag("title", None, f"{title} \u2013 Weft"), tag("style", None, style))
    whole = tag("html", {"lang": "en"}, head, tag("body", None, *body, tag("script", None, Markup(script))))
    return f"<!DOCTYPE html>\n{whole}\n"


def _title(result: StudyResult) -> str:
    """The study's name, or else what it compares."""
    names = [entry.name for entry in result.entries]
    if result.name != UNNAMED or not names:
        return result.name
    return ", ".join(names[:-1]) + f" and {names[-1]}" if 1 < len(names) < 6 else f"{len(names)} models"


def _header(view: View) -> Markup:
    result = view.result
    entries, seeds = len(result.entries), result.seeds
    machine = result.machine  # an accelerator is told by its name, or else the processor
    device = machine.processor if machine.device == "cpu" and machine.processor else machine.device
    line = (f"{entries} models, {integer(seeds)} {'run' if seeds == 1 else 'runs'} of each, intervals at "
            f"{confidence(result.level)}. {result.corpus.name}; {device}; "
            f"{moment(result.finished or result.started)}.")
    return top("Weft study", _title(result), line)


def top(kicker: str, title: str, about: str) -> Markup:
    """The head of a page: its kind, its title, a line about it, and the buttons of the script."""
    buttons = tag("p", {"class": "tools", "hidden": True}, tag("button", {"type": "button", "id": "theme"}, "Dark"),
                  tag("button", {"type": "button", "id": "print"}, "Print"))
    return tag("header", {"class": "top"}, buttons, tag("p", {"class": "kicker"}, kicker), tag("h1", None, title),
               tag("p", {"class": "line"}, about))


def _bar(view: View, sections: tuple[Section, ...]) -> Markup:
    """Contents, and the key of the models, which stays in sight."""
    links = [tag("li", None, tag("a", {"href": f"#{each.name}"}, each.short)) for each in sections]
    keys = [tag("li", {"data-model": str(view.styles[entry.name].index)}, view.key(entry, 24))
            for entry in view.result.entries]
    return join(tag("nav", {"class": "contents", "aria-label": "Contents"}, tag("ul", None, links)),
                tag("div", {"class": "legend", "role": "region", "aria-label": "Key of the models"},
                    tag("ul", None, keys)))


def _section(section: Section, view: View) -> Markup:
    words = section.lead if isinstance(section.lead, str) else section.lead(view)
    lead: Child = tag("p", {"class": "section-lead"}, words) if words else ""
    return tag("section", {"id": section.name, "aria-labelledby": f"{section.name}-h"},
               tag("h2", {"id": f"{section.name}-h"}, section.heading), lead, section.content(view))
