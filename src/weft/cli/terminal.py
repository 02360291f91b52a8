"""Text for a terminal, which obeys some characters: names, metadata and generated text must not be able to use them.

On a terminal, `on_terminal` puts a stream before each of the two outputs that writes control characters visibly
(``\\x1b``), whoever prints. What goes to a file or a pipe stays exact. Tables and progress bars, which need such
characters themselves, are written by `console`, which makes the text in them visible.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, TextIO, final

if TYPE_CHECKING:
    from rich.console import Console

OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line end (Unicode's category Cc), and those that reverse the order of what follows
(Unicode 15.0, annex 9, explicit formatting)."""


def visible(text: str) -> str:
    """``text`` with its control characters written as Python writes them: ``\\x1b`` for the one that begins escape
    sequences."""
    return OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


@final
class Terminal(io.TextIOWrapper):
    """A terminal's stream that is told only `visible` text.

    Args:
        stream: the terminal, to which it writes.
    """

    def __init__(self, stream: TextIO) -> None:
        self.exact = stream
        super().__init__(stream.buffer, encoding=stream.encoding, errors="backslashreplace", line_buffering=True)

    def write(self, text: str) -> int:
        super().write(visible(text))
        return len(text)

    def close(self) -> None:
        """Leave the terminal open, which is not this stream's."""
        self.flush()


@contextmanager
def on_terminal() -> Iterator[None]:
    """Put a `Terminal` in the place of standard output and of standard error, where they are terminals."""
    with ExitStack() as inside:
        if _is_terminal(sys.stdout):
            inside.enter_context(redirect_stdout(Terminal(sys.stdout)))
        if _is_terminal(sys.stderr):
            inside.enter_context(redirect_stderr(Terminal(sys.stderr)))
        yield


def console(*, err: bool = False) -> Console:
    """The console that tables are printed on: as wide as the terminal, 80 columns without one."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Shown(Console):
        """Text is made visible after it was laid out; what moves the cursor is the console's own."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for each in super().render(renderable, options):
                yield each if each.control or not self.is_terminal else Segment(visible(each.text), each.style)

    stream = sys.stderr if err else sys.stdout
    return Shown(highlight=False, markup=False, emoji=False, stderr=err,
                 file=stream.exact if isinstance(stream, Terminal) else None)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()
