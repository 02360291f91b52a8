"""``weft list``."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import Json, Plugin, guarded, prepare, print_json
from weft.cli.text import console, section, table

if TYPE_CHECKING:
    from weft.analysis import Entry
    from weft.api import Description
    from weft.interop.listing import Published

Kind = Annotated[str | None, typer.Argument(metavar="KIND", help="A group (mixer, mask, ...), for states, traits "
                                            "and sources of its parts; a part, for everything about it; or families, "
                                            "for published models.")]


FAMILIES = "families"
"""The kind that lists published models instead of parts."""


@guarded
def list_parts(kind: Kind = None, plugin: Plugin = None, json: Json = False) -> None:
    """List the parts. With a KIND: states, traits, sources, fields."""
    prepare(plugin)
    from weft import api

    if kind == FAMILIES:
        _families(list(api.families()), json)
        return
    entries = api.catalogue(kind)
    single = kind is not None and (kind != entries[0].group or len(entries) == 1)
    pages = [api.describe(entry) for entry in entries] if single else []
    if json:
        print_json(pages or entries)
    elif single:
        for page in pages:
            _page(page)
    elif kind is not None:
        _group(entries)
    else:
        _all(entries)


def _families(models: list[Published], json: bool) -> None:
    if json:
        print_json(models)
        return
    out = console()
    for _, members in groupby(models, key=lambda each: each.family):
        own = list(members)
        rows = table("model", ">parameters", ">as published", header=True)
        for each in own:
            rows.add_row(each.name, f"{each.parameters:,}", "the same" if each.agrees else f"{each.published:,}")
        title = [own[0].family, own[0].architecture, f"gguf: {own[0].gguf}" if own[0].gguf else ""]
        section(out, "  ".join(filter(None, title)), rows)


def _all(entries: list[Entry]) -> None:
    out = console()
    for group, members in groupby(entries, key=lambda entry: entry.group):
        rows = table("kind", "what", header=False)
        rows.columns[0].min_width = 18
        for entry in members:
            rows.add_row(entry.usage, _plain(entry.summary))
        section(out, group, rows)
    out.print("weft list GROUP adds states, traits and sources; weft list KIND shows everything about one part;\n"
              "weft list families shows published models.",
              style="dim")


def _group(entries: list[Entry]) -> None:
    out = console()
    for entry in entries:
        out.print(entry.usage, style="bold")
        facts = table("name", "value", header=False)
        lines = {"": _plain(entry.summary), "acts": _plain(entry.acts_on), "state": entry.state_size,
                 "traits": ", ".join(entry.traits), "source": entry.source}
        for name, value in lines.items():
            if value:
                facts.add_row(f"  {name:6}", value)
        out.print(facts)


def _page(page: Description) -> None:
    entry, out = page.entry, console()
    out.print(f"{entry.group} {entry.usage}", style="bold")
    out.print(f"\n{_flowing(page.text)}\n")
    rows = table("field", "type", "default")
    for field in page.fields:
        rows.add_row(field.name, field.type, field.default)
    section(out, "fields", rows)
    facts = [("acts on", _plain(entry.acts_on)), ("state", entry.state_size or "none"),
             ("source", entry.source), ("defined in", entry.defined_in)]
    facts += [(f"trait {name}", reason) for name, reason in entry.traits.items()]
    for name, value in facts:
        if value:
            out.print(f"{name}: {value}")
    out.print()


def _flowing(text: str) -> str:
    """Documentation with the lines of each paragraph joined, equations and lists left as they are."""
    paragraphs = _plain(text).split("\n\n")
    kept = (each.startswith(" ") or "\n " in each for each in paragraphs)
    return "\n\n".join(each if keep else each.replace("\n", " ") for each, keep in zip(paragraphs, kept, strict=True))


def _plain(text: str) -> str:
    """Without the double quotes of documentation."""
    return text.replace("``", "`")
