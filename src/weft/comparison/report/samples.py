"""Continuations of the prompt side by side, with the characters that would not be seen made visible."""

from __future__ import annotations

from weft.comparison.report.view import View
from weft.comparison.results import Entry, Sample
from weft.drawing.markup import Markup, annotated, join, tag
from weft.drawing.numbers import integer
from weft.drawing.table import folded

SHOWN = 700
"""Characters before the fold."""
KEPT = 6000
"""Characters in the page at all."""


def samples(view: View) -> Markup:
    """A card for each model, in the order of the table."""
    if not any(entry.sample for entry in view.result.entries):
        return tag("p", {"class": "none"}, "No model wrote a sample.")
    prompts = {(entry.sample.prompt, entry.sample.how) for entry in view.ranked if entry.sample}
    shared = _prompt(*next(iter(prompts))) if len(prompts) == 1 else Markup("")
    return join(shared, tag("div", {"class": "cards"}, [_card(view, entry, not shared) for entry in view.ranked]))


def _prompt(prompt: str, how: str) -> Markup:
    return join(tag("p", None, f"All continue the same prompt ({how}):"),
                tag("pre", {"class": "sample prompt", "dir": "auto", "tabindex": "0"}, annotated(prompt)))


def _card(view: View, entry: Entry, own: bool) -> Markup:
    style = view.styles[entry.name]
    body = _text(entry.sample, own) if entry.sample else tag("p", {"class": "none"}, "No sample: no run finished.")
    return tag("article", {"class": f"card {style.colour}", "data-model": str(style.index)},
               tag("h3", None, view.key(entry)), body)


def _text(sample: Sample, own: bool) -> Markup:
    prompt = tag("p", {"class": "small"}, sample.how, ": ", tag("bdi", {"class": "quoted"},
                                                                annotated(sample.prompt))) if own else ""
    if not sample.text:
        return join(prompt, tag("p", {"class": "none"}, "An empty continuation."))
    rest = sample.text[SHOWN:KEPT]
    left = len(sample.text) - KEPT
    tail = tag("p", {"class": "small"}, f"{integer(left)} more characters are left out.") if left > 0 else ""
    more = folded(f"{integer(len(rest))} more characters", _block(rest), tail) if rest else ""
    return join(prompt, _block(sample.text[:SHOWN]), more)


def _block(text: str) -> Markup:
    return tag("pre", {"class": "sample", "dir": "auto"}, annotated(text))
