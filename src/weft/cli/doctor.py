"""``weft doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import Json, Kernels, Plugin, Threads, guarded, prepare, print_json
from weft.cli.text import console, in_bytes, section, short, table
from weft.core.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from weft.analysis.capabilities import Diagnosis


@guarded(lambda given: "weft plan transformer shows what a model costs here")
def doctor(measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Time matrix products and memory "
                                                 "copies, which takes a few seconds.")] = True,
           renew_routes: Annotated[bool, typer.Option("--renew-routes", help="Measure the matrix products again whose "
                                                      "routes training keeps on this machine: when nothing else runs."
                                                      )] = False,
           storage: Annotated[bool, typer.Option("--storage", help="Show what is stored outside the folders of "
                                                 "results, where, and how large it is.")] = False,
           clear: Annotated[bool, typer.Option("--clear", help="With --storage: delete what Weft itself wrote "
                                               "there.")] = False,
           threads: Threads = None, kernels: Kernels = None, plugin: Plugin = None, json: Json = False) -> None:
    """Show what this installation and machine can do, measured."""
    if clear and not storage:
        raise InputError("this deletes what --storage lists.", where="--clear", remedy="Give both, or neither.")
    if storage:
        _storage(clear=clear, json=json)
        return
    prepare(plugin, threads, kernels)
    from weft import api

    with console(err=True).status("measuring", spinner="line"):
        found = api.doctor(measure=measure, renew_routes=renew_routes)
    if json:
        print_json(found)
        return
    out = console()
    versions = table("package", "version", header=False)
    for name, version in found.versions.items():
        versions.add_row(name, version, style="red" if version == "missing" else None)
    section(out, "Versions", versions)
    section(out, "Machine", _machine(found))
    section(out, "Products of linear maps by every route, and their largest error against float64", _routes(found))
    section(out, f"Routes of products that training keeps for {_count(found.threads, 'thread')}, in {found.kept_in}",
            _kept(found))
    section(out, "Operations, and how they are computed in training here", _operations(found))
    section(out, "Extras, for pip install 'weft[NAME]'", table("extra", "for", "missing", rows=[
        (extra.name, extra.unlocks, ", ".join(extra.missing) or "nothing") for extra in found.extras]))
    for warning in found.warnings:
        out.print(f"note: {warning}", style="yellow")


def _storage(*, clear: bool, json: bool) -> None:
    from weft.analysis.storage import clear_storage, storage

    gone = clear_storage() if clear else ()
    found = storage()
    if json:
        print_json({"stored": found, "deleted": gone})
        return
    rows = table("what", ">size", ">entries", ">of Weft's", "folder", "chosen by", rows=[
        (each.what, in_bytes(each.bytes), f"{each.entries:,}", f"{len(each.own):,}", str(each.folder),
         ", ".join(each.settings)) for each in found])
    section(console(), "Stored outside the folders of results", rows)
    for path in gone:
        typer.echo(f"deleted {path}")
    if not clear and any(each.own for each in found):
        typer.echo("--clear deletes what is Weft's: of the other files nothing proves that Weft wrote them.")


def _machine(found: Diagnosis) -> Table:
    rows = table("what", "value", header=False)
    rows.add_row("platform", found.platform)
    for device in found.devices:
        memory = f", {in_bytes(device.memory)}" if device.memory else ""
        rows.add_row(device.name, f"{device.description}{memory}")
    rows.add_row("computing with", f"{_count(found.threads, 'thread')} on {_count(found.cores, 'core')}, "
                                   f"{found.capability}")
    rows.add_row("PyTorch has", ", ".join(name for name, here in found.backends.items() if here) or "no libraries")
    rows.add_row("torch.compile", f"{found.compiler or 'no C++ compiler'}, Python's headers "
                                  f"{'found' if found.python_headers else 'missing'}")
    rows.add_row("native code", found.native)
    rows.add_row("Triton", found.triton)
    for card in found.cards:
        rates = ", ".join(f"{short(rate, 'FLOP/s')} in {name}" for name, rate in card.products.items())
        rows.add_row(f"{card.name} multiplies", rates)
        graph = "" if card.in_graph is None else f", {1e6 * card.in_graph:.1f} microseconds in a CUDA graph"
        rows.add_row(f"{card.name} copies and starts", f"{short(card.copy, 'B/s')}; a kernel in {1e6 * card.launch:.1f}"
                     f" microseconds{graph}")
    rows.add_row("disk free", f"{in_bytes(found.disk_free)} here, {in_bytes(found.disk_free_temporary)} for temporary "
                              "files")
    if found.copy:
        rows.add_row("memory copy", short(found.copy, "B/s"))
    return rows


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _routes(found: Diagnosis) -> Table:
    return table("product", "route", ">speed", ">error", "taken", rows=[
        (each.product, name, short(rate, "FLOP/s"), f"{each.errors[name]:.1e}", "taken" if name == each.route else "")
        for each in found.routes for name, rate in each.rates.items()])


def _kept(found: Diagnosis) -> Table:
    rows = table("route", ">products", "chosen", ">speed as a multiple of PyTorch's own")
    for route in sorted({each.route for each in found.kept}):
        own = [each for each in found.kept if each.route == route]
        first, last = min(each.date for each in own), max(each.date for each in own)
        gains = sorted(each.gain for each in own)
        rows.add_row(route, f"{len(own):,}", first if first == last else f"{first} to {last}",
                     f"{gains[0]:.2f} to {gains[-1]:.2f}")
    return rows


def _operations(found: Diagnosis) -> Table:
    rows = table("operation", "form", "how", "other forms")
    for each in found.operations:
        passed = {line.split(":")[0] for line in each.passed}
        rest = [name for name in each.others if name not in passed]
        rows.add_row(each.name, each.form, each.reason, "\n".join([*each.passed, *([", ".join(rest)] if rest else [])]))
    return rows
