"""The option that gives several lengths to measure at."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

OPTION = "--lengths"
Lengths: TypeAlias = Annotated[str | None, typer.Option(
    OPTION, metavar="N,N,...", help="Measure at each of these lengths, in tokens; of a window, or of a row that a task "
                                    "makes.")]


def lengths_of(text: str | None) -> list[int | None]:
    """The positive numbers of ``N,N,...``; one None where the option is not given.

    Raises:
        InputError: some part is no positive number.
    """
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
