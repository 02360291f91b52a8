"""``weft list``."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import Json, Plugin, guarded, prepare, print_json
from weft.cli.text import console, table

if TYPE_CHECKING:
    from weft.analysis import Entry
    from weft.api import Description

Kind = Annotated[str | None, typer.Argument(metavar="[KIND]", help="A group (mixer, position, mask, ...) for the states, "
                                            "traits and sources of its parts, or one part for everything about it.")]


@guarded
def list_parts(kind: Kind = None, plugin: Plugin = None, json: Json = False) -> None:
    """The catalogue: every part there is to build from, with sources, traits and the size of its state."""
    prepare(plugin)
    from weft import api

    entries = api.catalogue(kind)
    single = kind is not None and (kind != entries[0].group or len(entries) == 1)
    pages = [api.describe(entry) for entry in entries] if single else []
    if json:
        print_json([each.plain() for each in pages or entries])
    elif single:
        for page in pages:
            _page(page)
    elif kind is not None:
        _group(entries)
    else:
        _all(entries)


def _all(entries: list[Entry]) -> None:
    out = console()
    for group, members in groupby(entries, key=lambda entry: entry.group):
        rows = table("kind", "what", title=group)
        rows.show_header = False
        rows.columns[0].min_width = 18
        for entry in members:
            rows.add_row(entry.usage, entry.summary)
        out.print(rows)
        out.print()
    out.print("weft list GROUP adds states, traits and sources; weft list KIND shows everything about one part.",
              style="dim")


def _group(entries: list[Entry]) -> None:
    out = console()
    for entry in entries:
        out.print(entry.usage, style="bold")
        facts = table("name", "value")
        facts.show_header = False
        for name, value in (("", entry.summary), ("state", entry.state_size), ("traits", ", ".join(entry.traits)),
                            ("source", entry.source)):
            if value:
                facts.add_row(f"  {name:6}", value)
        out.print(facts)


def _page(page: Description) -> None:
    entry, out = page.entry, console()
    out.print(f"{entry.group} {entry.usage}", style="bold")
    out.print(f"\n{page.text}\n")
    if page.fields:
        rows = table("field", "type", "default")
        for field in page.fields:
            rows.add_row(field.name, field.type, field.default)
        out.print(rows)
        out.print()
    facts = [("state", entry.state_size or "none"), ("source", entry.source), ("defined in", entry.defined_in)]
    facts += [(f"trait {name}", reason) for name, reason in entry.traits.items()]
    for name, value in facts:
        if value:
            out.print(f"{name}: {value}")
    out.print()
