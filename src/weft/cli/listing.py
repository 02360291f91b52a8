"""``weft list``."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

import typer

from weft.cli.options import Json, Plugin, guarded, prepare, print_json
from weft.cli.text import console, section, table
from weft.index.index_cache import has_plugins, kept
from weft.index.records import SETTINGS, Description, Entry, Index, Preset, Published

Kind = Annotated[str | None, typer.Argument(metavar="KIND", help="A group (mixer, mask, ...), for states, traits "
                                            "and sources of its parts; a part, for everything about it; settings or "
                                            "one of them (training, data, ...); presets; or families, for published "
                                            "models with their parameters counted.")]


FAMILIES, PRESETS = "families", "presets"
"""The kinds that list published models, and configurations, instead of parts."""
INDENT = 4
WORDS = ("required", "any number", "see ")
"""How defaults begin that are words about one."""
CLOSING = ("weft list GROUP adds states, traits and sources; weft list KIND shows everything",
           "about one part, weft list training the keys of that section of a file,",
           "weft list presets each preset, weft list families counts their parameters.")


@guarded(lambda given: (
    "weft list attention describes one part" if given["kind"] is None else
    "a configuration names a part as its kind; weft config show transformer shows one"))
def list_parts(kind: Kind = None, plugin: Plugin = None, json: Json = False) -> None:
    """List the parts. With a KIND: states, traits, sources, fields."""
    prepare(plugin)
    index = _made() if plugin or has_plugins() else kept(_made_once)
    if kind == FAMILIES:
        _families(index.published, json)
        return
    if kind == PRESETS:
        _presets(index.presets, json)
        return
    pages = index.select(kind)
    single = kind is not None and (kind != pages[0].entry.group or len(pages) == 1)
    if json:
        print_json(pages if single else [page.entry for page in pages])
    elif single:
        for page in pages:
            _page(page)
    elif kind is not None:
        _group([page.entry for page in pages])
    else:
        _all(index)


def _made() -> Index:
    """The index of everything that this process knows, plugins included."""
    from weft.api.listing import indexed

    return indexed()


def _made_once() -> Index:
    if sys.stderr.isatty():
        typer.echo("the parts are read, once for this version of Weft; it takes some seconds", err=True)
    return _made()


def _families(models: Sequence[Published], json: bool) -> None:
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


def _presets(presets: Sequence[Preset], json: bool) -> None:
    if json:
        print_json(presets)
        return
    out = console()
    for family, members in groupby(presets, key=lambda each: each.family):
        rows = table("name", "what", header=False)
        rows.columns[0].min_width = 18
        for each in members:
            rows.add_row(each.name, each.line)
        section(out, family or "Weft's own", rows)


def _all(index: Index) -> None:
    out = console()
    pages = [*index.parts, *index.settings]
    for group, members in groupby((page.entry for page in pages), key=lambda entry: entry.group):
        rows = table("kind", "what", header=False)
        rows.columns[0].min_width = 18
        for entry in members:
            rows.add_row(entry.usage, _plain(entry.summary))
        section(out, group, rows)
    rows = table("name", "what", header=False)
    rows.columns[0].min_width = 18
    for each in index.presets:
        if not each.family:
            rows.add_row(each.name, each.line)
    for family, published in groupby(index.presets, key=lambda each: each.family):
        if family:
            rows.add_row(family, ", ".join(each.name for each in published))
    section(out, PRESETS, rows)
    for line in CLOSING:
        out.print(line, style="dim")


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
    _fields(page)
    facts = [("acts on", _plain(entry.acts_on)), ("state", entry.state_size or "none"),
             ("source", entry.source), ("defined in", entry.defined_in)]
    facts += [(f"trait {name}", reason) for name, reason in entry.traits.items()]
    facts += [(f"unlike {each.kind}", _plain(each.sentence)) for each in page.differs]
    for name, value in facts:
        if value and (name != "state" or entry.group != SETTINGS):
            out.print(f"{name}: {value}")
    out.print()


def _fields(page: Description) -> None:
    """Every field with its type and default on one line, and its meaning beneath."""
    out = console()
    if page.fields:
        out.print("fields", style="bold")
    for field in page.fields:
        default = field.default if field.default.startswith(WORDS) else f"= {field.default}"
        out.print(f"{field.name}  {field.type}  {default}")
        for line in textwrap.wrap(_plain(field.meaning), out.width - INDENT, break_on_hyphens=False):
            out.print(" " * INDENT + line, style="dim")
    if page.fields:
        out.print()


def _flowing(text: str) -> str:
    """Documentation with the lines of each paragraph joined, equations and lists left as they are."""
    paragraphs = _plain(text).split("\n\n")
    kept = (each.startswith(" ") or "\n " in each for each in paragraphs)
    return "\n\n".join(each if keep else each.replace("\n", " ") for each, keep in zip(paragraphs, kept, strict=True))


def _plain(text: str) -> str:
    """Without the double quotes of documentation."""
    return text.replace("``", "`")
