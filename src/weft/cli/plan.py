"""``weft plan``. ``weft plan --flops``: where the operations of a forward pass go, with what is assumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.closing import is_folder, word
from weft.cli.mixture import show_sources
from weft.cli.options import Common, Context, Overrides, OwnBatchSize, TrainingTokens, guarded, print_json
from weft.cli.text import console, duration, in_bytes, section, short, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from weft.analysis.adapter_reach import Coverage
    from weft.analysis.cost_plan import Plan, RunCosts
    from weft.analysis.flops import Shares


REFERENCE = "reference"
"""The route of a matrix product that PyTorch takes by default."""
Target = Annotated[str, typer.Argument(metavar="CONFIG|CHECKPOINT", help="A file, the name of a preset or of a "
                                        "published model, or a checkpoint's folder.")]


@guarded(lambda given: f"weft eval {word(given['target'])} measures it" if is_folder(word(given["target"])) else
         f"weft check {word(given['target'])} runs the laws on it, weft train {word(given['target'])} trains it")
def plan(target: Target, overrides: Overrides = None, *,
         tokens: TrainingTokens = None, context: Context = None, batch_size: OwnBatchSize = None,
         flops: Annotated[bool, typer.Option("--flops", help="Show only where the operations of a forward pass go: "
                                             "shares, with what is assumed.")] = False,
         common: Common) -> None:
    """Show what a model costs before it runs.

    Parameters, FLOPs by part, bytes of weights, activations and state, and with --tokens the shortest time of a
    training run here.
    """
    common.prepare()
    from weft import api
    from weft.api.examining import require_changeable

    require_changeable(target, overrides or [])
    target, device = str(common.folder(target)), common.device
    if flops:
        _shares(target, overrides or [], context, common.json)
        return
    total = None if tokens is None else round(tokens)
    found = api.plan(target, overrides or [], context=context, batch=batch_size, dtype=common.dtype, tokens=total,
                     here=True, device=device)
    mixture = None if Path(target).is_dir() else api.data_sources(target, overrides or [], tokens=total)
    if common.json:
        print_json(found if mixture is None else {**found.to_json(), "sources": mixture.to_json()})
        return
    out = console()
    out.print(f"{_headline(found)}\n", style="bold")
    section(out, "Parts, and FLOPs of the forward pass for one token", _parts(found))
    if found.adapters is not None:
        section(out, "Reached by adapters", _reached(found.adapters))
    section(out, "Memory", _bytes(found))
    sizes = () if found.states is None else found.states.sizes
    growth = "" if found.states is None else (f" of {found.batch:,} row{'s' if found.batch > 1 else ''}, "
                                              f"{found.states.growth}: {in_bytes(found.states.per_token)} for each "
                                              "further token of a row")
    section(out, f"State{growth}", table(">tokens", ">bytes", rows=[
        (f"{size.context:,}", in_bytes(size.bytes)) for size in sizes]))
    if found.here is not None:
        section(out, "On this machine" if device == "cpu" else f"On {device}", _here(found.here))
    if found.forms:
        section(out, "How operations are computed here", _forms(found))
    if found.time_here:
        here = found.time_here
        section(out, "Products of a batch, and the fastest route here", table(
            "product", "route", ">speed", ">PyTorch's own", rows=[
                (each.product, each.route, *(short(each.rates[route], "FLOP/s") for route in (each.route, REFERENCE)))
                for each in here.products]))
        out.print(f"{here.tokens:,} tokens of training: {short(here.flops, 'FLOP')}, at least {duration(here.seconds)} "
                  f"here (a square matrix product reaches {short(here.rate, 'FLOP/s')})\n")
    if mixture is not None:
        show_sources(out, mixture)
    for note in (*(() if found.here is None else found.here.assumptions), *found.notes):
        out.print(f"note: {note}")


def _shares(target: str, overrides: list[str], context: int | None, json: bool) -> None:
    from weft.api.examining import flops_shares

    found, shares = flops_shares(target, overrides, context=context)
    if json:
        print_json(shares)
    else:
        show_shares(console(), found, shares)


def _here(found: RunCosts) -> Table:
    """Peak memory and least times of training and of decoding."""
    there = f"of {in_bytes(found.machine_memory)}" if found.machine_memory else ""
    rows = table("work", ">peak memory", there, ">step at least", ">tokens/s at most")
    for name, work in (("training", found.train), ("decoding", found.decode)):
        if work is not None:
            fits = {True: "fits", False: "does not fit", None: ""}[work.fits]
            rows.add_row(f"{name} {work.rows:,} x {work.context:,}", in_bytes(work.memory), fits,
                         _seconds(work.seconds), short(work.tokens_per_second))
    if found.decode is not None and found.decode.prompt_seconds is not None:
        rows.add_row("  its prompt", "", "", _seconds(found.decode.prompt_seconds), "")
    return rows


def _seconds(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{seconds * 1000:,.3g} ms"


def _headline(found: Plan) -> str:
    numbers = found.parameters
    tied = ", readout tied to the embeddings" if numbers.tied else ""
    active = "" if numbers.active == numbers.total else f", {numbers.active:,} used by a token"
    still = "" if numbers.trained == numbers.total else f", {numbers.trained:,} trained"
    rows = f"{found.dtype}, context {found.context:,}, {found.batch:,} row{'s' if found.batch > 1 else ''}"
    inside = f"{numbers.embeddings:,} in embeddings{tied}{active}{still}"
    return f"{found.model} of {numbers.total:,} parameters ({inside}); {rows}"


def _parts(found: Plan) -> Table:
    """Parameters and FLOPs of each part."""
    rows = table("part", ">parameters", ">share", ">FLOPs, all pairs", ">visible pairs", ">share")
    numbers = {part.part: part for part in found.parameters.parts}
    flops = {} if found.flops is None else {part.part: part for part in found.flops.parts}
    for name in dict.fromkeys([*numbers, *flops]):
        own, cost = numbers.get(name), flops.get(name)
        rows.add_row(name, f"{own.numbers:,}" if own else "-", f"{own.share:.1%}" if own else "-",
                     short(cost.full) if cost else "-", short(cost.visible) if cost else "-",
                     f"{cost.share_visible:.1%}" if cost else "-")
    if found.flops is not None:
        rows.add_row("all", f"{found.parameters.total:,}", "", short(found.flops.full), short(found.flops.visible), "",
                     style="bold")
    return rows


def _reached(found: Coverage) -> Table:
    """The reach of adapters over each kind of part."""
    rows = table("part", ">matrices", ">of", ">parameters", ">of", ">share", ">of its FLOPs")
    for each in found.kinds:
        share = each.numbers / each.all_numbers if each.all_numbers else 0.0
        rows.add_row(each.kind, f"{each.matrices:,}", f"{each.all_matrices:,}", f"{each.numbers:,}",
                     f"{each.all_numbers:,}", f"{share:.1%}", f"{each.flops:.1%}",
                     style="bold" if each is found.kinds[-1] else None)
    return rows


def _bytes(found: Plan) -> Table:
    rows = table("what", ">bytes", header=False)
    for dtype, size in found.weights.items():
        rows.add_row(f"weights in {dtype}", in_bytes(size))
    if found.buffers:
        rows.add_row("fixed tensors", in_bytes(found.buffers))
    if found.training is not None:
        rows.add_row(f"training in {found.dtype}: weights", in_bytes(found.training.weights))
        rows.add_row("  gradients", in_bytes(found.training.gradients))
        rows.add_row("  optimizer (AdamW)", in_bytes(found.training.optimizer))
    if found.step is not None:
        rows.add_row(f"  activations of {found.step.batch:,} x {found.step.context:,} tokens",
                     in_bytes(found.step.activations))
    return rows


def _forms(found: Plan) -> Table:
    rows = table("operation", "form", "in", "how")
    for each in found.forms:
        reasons = [each.reason, *(f"not {line}" for line in each.passed)]
        rows.add_row(each.operation, each.form, ",\n".join(each.phases), "\n".join(reasons))
    return rows


def show_shares(out: Console, found: Plan, shares: Shares) -> None:
    """Print the table of shares, the assumptions, and shares that are often quoted for the model."""
    out.print(f"{found.model} of {found.parameters.total:,} parameters\n", style="bold")
    quoted = shares.quoted
    rows = table("part", ">FLOPs a token", ">share", ">visible pairs", ">share", *([">as quoted"] if quoted else []))
    for each in shares.rows:
        rows.add_row(each.part, short(each.full), f"{each.share_full:.1%}", short(each.visible),
                     f"{each.share_visible:.1%}",
                     *([f"{quoted[each.part]:.1%}" if quoted.get(each.part) is not None else ""] if quoted else []))
    rows.add_row("all", short(shares.full), "", short(shares.visible), "", *([""] if quoted else []), style="bold")
    section(out, "Where the FLOPs of a forward pass go", rows)
    for line in shares.assumptions:
        out.print(f"assumed: {line}")
    if shares.why_not:
        out.print(f"quoted: {shares.why_not}")
