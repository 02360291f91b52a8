"""Jinja templates of checkpoints, rendered in a process of their own (`weft.chat.rendering`): they can neither reach
nor change anything but their data, and the system bounds their memory, time and output.

The dialect is that of ``transformers``: block lines leave no white space (``trim_blocks``, ``lstrip_blocks``), loops
have ``break`` and ``continue``, ``tojson`` writes plain JSON, ``raise_exception(message)`` raises an error,
``strftime_now(format)`` gives the time, and ``{% generation %}`` marks text of the model.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from weft.confinement.process import ConfinedProcess
from weft.core.errors import FailedError, InputError

MEMORY = 1 << 29
"""The most bytes of addresses of the process that renders, the interpreter's included."""
SECONDS = 10.0
"""The longest time of one rendering; usual ones take less than a thousandth of that."""
LONGEST_SOURCE = 1 << 20
"""The most characters of a template. The longest published ones have some thirty thousand."""
LARGEST = 16_000_000
"""The most characters of any rendering."""
OWN_CHARACTERS, PER_VALUE, PER_CHARACTER = 50_000, 1_000, 16
"""The most characters of a rendering: so many of the template's own, and so many more for each value and each character
of what it is given. The longest texts of published templates have some ten thousand; JSON writes a character as up to
twelve. A model reads all of a rendering, so a template that writes a million characters for a greeting would keep it
busy for hours."""

ANOTHER = "Use another template (--template)."
WHAT = {"escape": "tries to reach out of its sandbox", "endless": "does not come to an end",
        "memory": "does not come to an end", "refused": "rejects these messages", "fails": "fails"}


class Renderer:
    """Renders templates in one process, which begins at the first request and again after one that had to be ended."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: ConfinedProcess | None = None

    def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a request, see `weft.chat.rendering.rendered`. Raises `FailedError`: no process can be
        started."""
        line = json.dumps(request).encode("ascii") + b"\n"
        with self._lock:
            try:
                if self._process is None:
                    self._process = _started()
                    self._process.exchange(b'{"source": "", "variables": null}\n', time.monotonic() + 60, LARGEST)
                told = self._process.exchange(line, time.monotonic() + SECONDS, 4 * LARGEST)
                answer: dict[str, Any] = dict(json.loads(told.decode("utf-8", "surrogatepass")))
            except TimeoutError:
                answer = {"kind": "endless", "reason": f"it took {SECONDS:g} seconds", "line": None}
            except (OverflowError, ValueError, TypeError):
                answer = {"kind": "endless", "reason": "it ended the process that renders", "line": None}
            except BaseException:  # an interrupted request leaves an answer that belongs to no other
                self._end()
                raise
            if answer.get("kind") in ("endless", "memory"):
                self._end()
        return answer

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
        self._process = None


def _started() -> ConfinedProcess:
    paths = {str(Path(spec.origin).parents[1]) for name in ("jinja2", "markupsafe")
             if (spec := find_spec(name)) is not None and spec.origin is not None}
    try:
        return ConfinedProcess("weft.chat.rendering", (MEMORY, round(SECONDS) + 60), sorted(paths))
    except OSError as error:
        raise FailedError(f"no process can be started ({error.strerror}).", where="chat template",
                          remedy="Free memory or processes, and try again.") from None


@lru_cache(maxsize=1)
def _renderer(process: int) -> Renderer:
    """The one of a process: a fork of it has pipes that are another's."""
    return Renderer()


class SandboxedTemplate:
    """A compiled template.

    Args:
        source: the template in Jinja.

    Raises:
        InputError: the source is not Jinja.
    """

    def __init__(self, source: str, name: str) -> None:
        self._name, self._source = name, source
        if len(source) > LONGEST_SOURCE:
            raise InputError(f"a template of {len(source):,} characters; at most {LONGEST_SOURCE:,} are read.",
                             where=f"chat template {name!r}", remedy=ANOTHER)
        about = self._answer({"variables": None})
        self.declares_answers = bool(about.get("declares_answers"))
        """Whether it says with ``{% generation %}`` which text is the model's."""
        self.sought = frozenset(about.get("sought", ()))
        """The texts that it looks for in messages."""

    def render(self, variables: Mapping[str, Any], now: datetime, kept: str = "",
               marks: tuple[str, str] = ("", "")) -> str:
        """Render the template with ``variables``.

        Args:
            now: the time that ``strftime_now`` gives.
            kept: characters that ``tojson`` does not escape even where it writes ASCII.
            marks: texts that are written before and after each block of ``{% generation %}``.

        Raises:
            InputError: the template rejects its input, fails, leaves the sandbox or exceeds its bounds; the message has
                the template's own message and line.
        """
        return str(self._answer({"variables": dict(variables), "now": now.isoformat(), "kept": kept, "marks": marks,
                                 "most": most_written(variables)})["text"])

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = _renderer(os.getpid()).ask({"source": self._source, **request})
        if "kind" not in answer:
            return answer
        kind, reason, line = str(answer["kind"]), str(answer["reason"]).rstrip(), answer["line"]
        closed = reason if reason.endswith((".", "!", "?")) else f"{reason}."
        where = f"chat template {self._name!r}" + ("" if line is None else f" line {line}")
        if kind == "syntax":
            raise InputError(f"not a Jinja template: {closed}", where=where, remedy=ANOTHER)
        remedy = f"Give messages that it accepts. {ANOTHER}" if kind == "refused" else ANOTHER
        raise InputError(f"the template {WHAT.get(kind, 'fails')}: {closed}", where=where, remedy=remedy)


def most_written(variables: Any) -> int:
    """The most characters of a rendering of these variables, which are plain data."""
    values, characters = 0, 0
    for value in _values(variables):
        values += 1
        characters += len(value) if isinstance(value, str) else 0
    return min(LARGEST, OWN_CHARACTERS + PER_VALUE * values + PER_CHARACTER * characters)


def _values(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _values(item)
