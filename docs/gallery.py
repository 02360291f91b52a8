"""The gallery: a page for every part and every family, an index with their pictures, and the reference of all fields.
All of it is generated from what the parts declare."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from family_page import MOST, FamilyPage, family_page
from in_use import brief
from part_page import WIDTH, PartPage, StateCurve, part_page

from weft.analysis.known_parts import catalogue
from weft.api.listing import settings_pages
from weft.core.registry import REGISTRY
from weft.drawing.figure import Figure
from weft.families.family import families
from weft.index.records import Description, FieldDescription

PARTS, FAMILIES, PICTURES = "parts", "families", "pictures"
"""Folders beside the index."""
TOP = ("---", "orphan: true", "---", "")
"""The head of a page that the index alone leads to: hundreds of entries would make the side bar useless."""
BACK = "[Gallery](../gallery.md)"
"""The way back."""
ORDER = ("model", "encoder", "mixer", "feedforward", "block", "norm", "mask", "position", "position_table",
         "rope_scaling", "readout", "head", "rewrite", "task", "tokenizer", "optimizer", "schedule", "benchmark")
"""The groups of parts as the index shows them."""
OUTSIDE = ("rewrite", "task", "tokenizer", "optimizer", "schedule", "benchmark")
"""Those of which no layer is made."""


def write_gallery(folder: Path, only: Sequence[str] = ()) -> None:
    """Write the pages, their pictures, the index and the reference of fields into ``folder``.

    Args:
        folder: of generated pages.
        only: kinds of parts and names of families that get pages; empty: all.
    """
    for name in (PARTS, FAMILIES, PICTURES):
        (folder / name).mkdir(parents=True, exist_ok=True)
    parts = [part_page(entry) for entry in catalogue() if not only or entry.kind in only]
    known = {(page.about.entry.group, page.about.entry.kind) for page in parts}
    for page in parts:
        _save(folder, page.figures)
        (folder / PARTS / f"{_name(page)}.md").write_text(part_text(page, known), encoding="utf-8")
    kin = [family_page(name) for name, family in families().items() if family.sizes and (not only or name in only)]
    families_known = {each.family.name for each in kin}
    for each in kin:
        _save(folder, [each.figure])
        text = family_text(each, known, families_known)
        (folder / FAMILIES / f"{each.family.name}.md").write_text(text, encoding="utf-8")
    (folder / "gallery.md").write_text(index_text(parts, kin), encoding="utf-8")
    (folder / "fields.md").write_text(fields_text([page.about for page in parts]), encoding="utf-8")


def part_text(page: PartPage, known: set[tuple[str, str]]) -> str:
    """The page of a part, as Markdown."""
    about, entry = page.about, page.about.entry
    lines = [*TOP, f"# {entry.kind} ({entry.group})", "", BACK, "", escaped(entry.summary), "", *_figures(page.figures),
             "## Equation", "", "```{math}", about.equation, "```", "", "## State", "", *_state(page.state, about), "",
             "## A configuration that works", "", *_configuration(page), "", "## Differs from", ""]
    lines += [f"- {_link(entry.group, each.kind, known)}: {escaped(each.sentence)}" for each in about.differs]
    lines += ["", "## Laws and traits", "", *_laws(page), "", "## Fields", "", *field_table(about.fields), "",
              "## In full", "", *_prose(about.text), "", "## Source", "", f"{escaped(entry.source)}. Defined in "
              f"`{entry.defined_in}`. `weft list {entry.kind}` shows this in the terminal.", ""]
    return "\n".join(lines)


def family_text(page: FamilyPage, known: set[tuple[str, str]], families_known: set[str]) -> str:
    """The page of a family, as Markdown."""
    lines = [*TOP, f"# {page.family.name} (family)", "", BACK, "", f"{escaped(page.family.source)}.", "",
             *_figures([page.figure]), "## Equations", "", "Those of its parts:", ""]
    for group, kind in page.parts:
        equation = REGISTRY.get((group,), kind).about.equation
        lines += [f"{_link(group, kind, known, '../parts/')}", "", "```{math}", equation, "```", ""]
    lines += ["## State", ""]
    lines += [*_sizes(page.state), "", f"Bytes of one row of {page.size.name} in bfloat16."] if page.state else [
        "It has none of a fixed form: it reads its text in both directions, or keeps that of a source as well."]
    lines += ["", "## A configuration that works", "", f"{page.size.name}, as a file for `weft plan FILE`:", "",
              "```yaml", _yaml(page.config), "```", "", "## Differs from", ""]
    for other, differences in page.differs:
        shown = [f"`{key}` is {_value(own)}, there {_value(theirs)}" for key, own, theirs in differences[:MOST]]
        more = f"; and {len(differences) - MOST} more" if len(differences) > MOST else ""
        named = f"[{other}]({other}.md)" if other in families_known else f"`{other}`"
        lines.append(f"- {named}: {'; '.join(shown) or 'whole numbers alone, such as sizes'}{more}.")
    lines += ["", "## Published models", "", "| name | parameters | source of the number |", "| --- | --- | --- |"]
    lines += [f"| {size.name} | {size.parameters or 0:,} | {escaped(size.source)} |" for size in page.family.sizes]
    return "\n".join([*lines, ""])


def index_text(parts: Sequence[PartPage], kin: Sequence[FamilyPage]) -> str:
    """The index: a thumbnail of every page, by group."""
    lines = ["# Gallery", "", "Every part and every family of published models, each with its drawing, equation and "
             "state, a configuration that works, and what sets it apart.", ""]
    for group, members in groupby(sorted(parts, key=_order), key=lambda page: page.about.entry.group):
        cards = [(f"{PARTS}/{_name(page)}", page.about.entry.kind, page.figures[0]) for page in members]
        lines += [f"## {group}", "", *_cards(cards)]
    cards = [(f"{FAMILIES}/{page.family.name}", page.family.name, page.figure) for page in kin]
    return "\n".join([*lines, "## families", "", *_cards(cards)])


def fields_text(pages: Sequence[Description]) -> str:
    """The reference of every field of every configuration."""
    lines = ["# Field reference", "", "Every key of every file, with its type, default and meaning. `weft list KIND` "
             "shows the same. NAME and N stand for any name and any number.", ""]
    for group, members in groupby([*settings_pages(), *pages], key=lambda page: page.entry.group):
        lines += [f"## {group}", ""]
        for page in members:
            if page.fields:
                lines += [f"### {page.entry.usage} ({group})", "", *field_table(page.fields), ""]
    return "\n".join(lines)


def field_table(fields: Sequence[FieldDescription]) -> list[str]:
    """A table of fields."""
    if not fields:
        return ["It has no fields."]
    rows = [f"| `{field.name}` | {_cell(field.type)} | {_default(field.default)} | {_cell(field.meaning)} |"
            for field in fields]
    return ["| key | type | default | meaning |", "| --- | --- | --- | --- |", *rows]


def escaped(text: str) -> str:
    """Text of a docstring as MyST: its code keeps its quotes, everything else is taken literally."""
    pieces = re.split(r"(?<!`)(?:``([^`]+)``|`([^`]+)`)(?!`)", text)
    plain = [re.sub(r"([\\`*_{}\[\]<>#$|~])", r"\\\1", piece) for piece in pieces[::3]]
    code = [f"`{double or single}`" for double, single in zip(pieces[1::3], pieces[2::3], strict=True)]
    return "".join(a + b for a, b in zip(plain, [*code, ""], strict=True))


def _order(page: PartPage) -> int:
    """The place of a part's group: what models are made of first, what is done with them last."""
    group = page.about.entry.group
    return ORDER.index(group) if group in ORDER else len(ORDER)


def _name(page: PartPage) -> str:
    return f"{page.about.entry.group}-{page.about.entry.kind}"


def _save(folder: Path, figures: Sequence[Figure]) -> None:
    for figure in figures:
        (folder / PICTURES / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


def _figures(figures: Sequence[Figure]) -> list[str]:
    lines: list[str] = []
    for figure in figures:
        lines += [f"![{escaped(figure.title)}](../{PICTURES}/{figure.name}.svg)", ""]
        lines += [f"*{escaped(str(figure.caption))}*", ""] if figure.caption else []
    return lines


def _state(state: StateCurve | None, about: Description) -> list[str]:
    words = about.entry.state_size
    if state is None and about.entry.group in OUTSIDE:
        return ["It is no layer of a model, so the state of a row has nothing of it."]
    if state is None:
        return ["None of its own: it is the same at every token, or keeps nothing from token to token."]
    return [*([f"A row keeps: {escaped(words)}.", ""] if words else []), *_sizes(state.sizes), "",
            f"Bytes of one row at width {WIDTH} in float32, the clock included, of `{_inline(brief(state.config))}`."]


def _sizes(sizes: Sequence[tuple[int, int]]) -> list[str]:
    return ["| tokens | " + " | ".join(f"{length:,}" for length, _ in sizes) + " |",
            "| --- |" + " --- |" * len(sizes),
            "| bytes | " + " | ".join(f"{size:,}" for _, size in sizes) + " |"]


def _configuration(page: PartPage) -> list[str]:
    used = page.used
    assert used is not None, "a page without one is refused"
    return ["```yaml", _yaml(used.data), "```", "", f"`{used.command}`"]


def _laws(page: PartPage) -> list[str]:
    traits = page.about.entry.traits
    number = f"{page.examples} configuration{'s' if page.examples != 1 else ''}"
    lines = [f"[The laws](../../law.md) run on {number} of it in every test." if page.examples else
             "It changes no layer, so [the laws](../../law.md) of layers say nothing of it."]
    lines += ["", *(f"- `{name}`: {escaped(reason)}" for name, reason in traits.items())] if traits else []
    return lines


def _link(group: str, kind: str, known: set[tuple[str, str]], before: str = "") -> str:
    """A link to the page of a part of that kind, of the same group if there is one."""
    found = (group, kind) if (group, kind) in known else next((pair for pair in sorted(known) if pair[1] == kind), None)
    return f"`{kind}`" if found is None else f"[{kind}]({before}{'-'.join(found)}.md)"


def _prose(text: str) -> Iterator[str]:
    """A docstring's paragraphs; what is indented or has columns stays as it is."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(" ") or "\n " in paragraph:
            yield from ("```text", paragraph, "```", "")
        else:
            yield from (escaped(" ".join(paragraph.split())), "")


def _cards(cards: Sequence[tuple[str, str, Figure]]) -> list[str]:
    """A grid of pictures with names beneath, each a link."""
    items = [f'<a class="card" href="{page}.html"><img loading="lazy" alt="" src="../_images/{figure.name}.svg">'
             f"<span>{name}</span></a>" for page, name, figure in cards]
    return ["```{raw} html", '<div class="cards">', *items, "</div>", "```", ""]


def _cell(text: str) -> str:
    return escaped(text) or " "


def _default(text: str) -> str:
    if text.startswith("see weft "):
        return f"see `{text.removeprefix('see ')}`"
    return text if text.startswith(("required", "any number", "see ")) else "`" + text.replace("|", "\\|") + "`"


def _value(value: Any) -> str:
    return "absent" if value is None else f"`{value}`"


def _yaml(data: Any) -> str:
    return yaml.safe_dump(_plain(data), sort_keys=False, default_flow_style=None, width=96).rstrip()


def _inline(data: Any) -> str:
    """A configuration on one line."""
    return data if isinstance(data, str) else yaml.safe_dump(
        _plain(data), sort_keys=False, default_flow_style=True, width=10_000).strip()


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    return [_plain(each) for each in data] if isinstance(data, list | tuple) else data
