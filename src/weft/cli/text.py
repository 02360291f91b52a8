"""Numbers as text, and tables that fit into 80 columns. The option that gives several lengths to measure at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from weft.cli.terminal import console as console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
DECIMAL = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def in_bytes(number: float) -> str:
    """A number of bytes with its unit: ``1.5 MiB``."""
    shown, unit = _scaled(round(number), 1024, BINARY, lambda value: f"{value:,.1f}")
    return f"{number:,.0f} B" if unit == BINARY[0] else f"{shown} {unit}"


def short(number: float, unit: str = "") -> str:
    """A number to three digits in thousands, millions, ...: ``1.00 M``, ``45.6 GFLOP/s``; small whole numbers
    unchanged."""
    shown, prefix = _scaled(number, 1000, DECIMAL, _three_digits)
    if not prefix and float(number).is_integer():
        shown = f"{number:.0f}"
    return f"{shown} {prefix}{unit}".rstrip()


def duration(seconds: float) -> str:
    """Seconds below two minutes, then minutes, hours or days."""
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} seconds"


def table(*columns: str, header: bool = True, rows: Iterable[Sequence[str]] = ()) -> Table:
    """A table without lines; columns whose name begins with ``>`` are numbers, aligned to the right and never
    wrapped."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_header=header)
    for column in columns:
        if column.startswith(">"):
            made.add_column(column[1:], justify="right", no_wrap=True)
        else:
            made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def section(out: Console, title: str, rows: Table) -> None:
    """Print a table under its title, and an empty line; nothing for an empty table."""
    if rows.row_count:
        out.print(title, style="bold")
        out.print(rows)
        out.print()


def _scaled(number: float, base: int, names: tuple[str, ...], write: Callable[[float], str]) -> tuple[str, str]:
    """The digits of a number and its prefix; what rounds to ``base`` takes the next prefix (999.9 is 1.00 k)."""
    size, index = float(number), 0
    while abs(float(write(size).replace(",", ""))) >= base and index < len(names) - 1:
        size, index = size / base, index + 1
    return write(size), names[index]


def _three_digits(value: float) -> str:
    shown = f"{value:#.3g}".rstrip(".")
    return f"{value:,.0f}" if abs(float(shown)) >= 1000 else shown


OPTION = "--lengths"
Lengths: TypeAlias = Annotated[str | None, typer.Option(
    OPTION, metavar="N,N,...", help="Measure at each of these lengths, in tokens; of a window, or of a row that a task "
                                    "makes.")]


def lengths_of(text: str | None) -> list[int | None]:
    """The positive numbers of ``N,N,...``; one None where the option is not given. Raises `InputError`: some part is no
    positive number."""
    from weft.core.errors import InputError

    if text is None:
        return [None]
    sizes: list[int | None] = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < 1:
            raise InputError(f"{part!r} is not a positive number of tokens.", where=OPTION,
                             remedy="Give numbers such as 128 or 128,512.")
        sizes.append(int(part))
    return sizes
