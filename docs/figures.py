"""The figures that pages quote, and what makes them: ``python docs/figures.py`` runs the lessons and writes what they
found into `figures.json` and into the outputs on their pages.

`figures.json` has an entry for each page that quotes figures. A figure is made by the page's own code (``code``, an
expression of the names that its blocks leave, with a ``tolerance``, or ``below`` where it is a bound), by a recipe's
recorded result (``recipe`` and ``at``, the way to the number in it; ``*`` is the mean over what stands there, and
``[18, 21]`` that over elements 18 to 20 of a list), or published (``source``). ``given`` are the numbers that a page
chooses or counts, each with what it is. `problems` lists the disagreements of a page with all of that; a number that is
nowhere in the file is one.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

DOCS = Path(__file__).parent
FILE = DOCS / "figures.json"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.,])\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
YEAR = re.compile(r"(?:19[89]|20[012])\d$")
SLOWER = 20
"""How many times the seconds that a page states its code may take before that is told: tests run beside others."""

Page = Mapping[str, Any]


@final
class Ran(NamedTuple):
    """What the code of a page did.

    Attributes:
        names: what its blocks left, all in one namespace.
        outputs: of each block.
        seconds: of the processor, of all blocks.
    """

    names: dict[str, Any]
    outputs: list[str]
    seconds: float


def known() -> dict[str, Any]:
    """The entries of every page, by its path in the documentation."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def run(text: str) -> Ran:
    """Run the Python blocks of a page, each going on from the last, as a reader does who types them one by one."""
    names: dict[str, Any] = {"__name__": "__lesson__"}
    outputs, begun = [], time.process_time()
    for block in BLOCK.finditer(text):
        with contextlib.redirect_stdout(io.StringIO()) as written:
            exec(compile(block["code"], "lesson", "exec"), names)
        outputs.append(written.getvalue())
    return Ran(names, outputs, time.process_time() - begun)


def value_of(figure: Page, names: dict[str, Any], root: Path) -> float | None:
    """The number that makes a figure; None for a published one."""
    if "code" in figure:
        return float(eval(figure["code"], names))
    if "recipe" in figure:
        found = json.loads((root / "recipes" / figure["recipe"] / "result.json").read_text(encoding="utf-8"))
        return recorded(found, figure["at"]) * float(figure.get("times", 1))
    return None


def recorded(found: Any, way: Iterable[str | int | list[int]]) -> float:
    """The number at the end of a way through a result; ``*`` is the mean of those behind it, and a pair of numbers that
    over a part of a list."""
    steps = list(way)
    for index, step in enumerate(steps):
        if step == "*" or isinstance(step, list):
            several = found.values() if isinstance(found, dict) else found[slice(*step)] if step != "*" else found
            return statistics.mean(recorded(each, steps[index + 1:]) for each in several)
        found = found[step]
    return float(found)


def prose(text: str) -> str:
    """A page without code, formulas, links' targets and comments: the words and tables that a reader takes figures
    from."""
    for pattern in (r"^```.*?^```", r"\$\$.*?\$\$", r"\$[^$\n]*\$", r"<!--.*?-->", r"`[^`\n]*`", r"\]\([^)]*\)",
                    r"arXiv:\S+"):
        text = re.sub(pattern, " ", text, flags=re.MULTILINE | re.DOTALL)
    return text


def numbers(text: str) -> list[str]:
    """The numbers of a text that say more than a count: those of one digit, and years, are words."""
    return [found for found in NUMBER.findall(text) if len(found) > 1 and not YEAR.match(found)]


def plain(shown: str) -> float:
    """The number that a page shows."""
    return float(shown.replace(",", ""))


def half_a_unit(shown: str) -> float:
    """Half of the last digit that is shown."""
    mantissa, _, exponent = shown.replace(",", "").partition("e")
    return 0.5000001 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def problems(name: str, text: str, page: Page, ran: Ran, root: Path) -> list[str]:
    """What of a page disagrees with its code, with the recipes, or is in neither."""
    return [f"docs/{name}: {said}" for said in (*_values(page, ran, root), *_outputs(text, page, ran),
                                                *_unknown(text, page), *_time(page, ran))]


def _values(page: Page, ran: Ran, root: Path) -> Iterable[str]:
    for figure in page["figures"]:
        value, shown = value_of(figure, ran.names, root), figure["shown"]
        room = half_a_unit(shown) + float(figure.get("tolerance", 0))
        agrees = value is None or (value <= plain(shown) if figure.get("below") else abs(value - plain(shown)) <= room)
        if not agrees:
            yield f"{shown} is now {value:.6g} ({figure.get('code') or figure['recipe']}); allowed is {room:.2g}."


def _outputs(text: str, page: Page, ran: Ran) -> Iterable[str]:
    room = {figure["shown"]: float(figure.get("tolerance", 0)) for figure in page["figures"]}
    for block, output in zip(BLOCK.finditer(text), ran.outputs, strict=True):
        stands = block["output"] or ""
        there, now = ([line.rstrip() for line in each.splitlines()] for each in (stands, output))
        if len(there) != len(now) or not all(map(_agree, there, now, [room] * len(now))):
            yield f"a block prints\n{output}\nand the page shows\n{stands}"


def _agree(there: str, now: str, room: Mapping[str, float]) -> bool:
    """Whether two lines are equal but for numbers within their tolerance."""
    if NUMBER.sub("#", there).split() != NUMBER.sub("#", now).split():
        return False
    return all(abs(plain(one) - plain(other)) <= room.get(one, 0.0) + (2 * half_a_unit(one) if one in room else 0.0)
               for one, other in zip(NUMBER.findall(there), NUMBER.findall(now), strict=True))


def _unknown(text: str, page: Page) -> Iterable[str]:
    listed = {figure["shown"] for figure in page["figures"]} | set(page.get("given", {}))
    rooms = {float(figure["tolerance"]) for figure in page["figures"] if "tolerance" in figure}
    listed |= {f"{page['seconds']:g}"} if "seconds" in page else set()
    quoted = numbers(prose(text))
    yield from (f"{each} is quoted, and figures.json does not say what makes it." for each in sorted(
        set(quoted) - listed) if plain(each) not in rooms)
    everywhere = set(quoted) | set(NUMBER.findall(text))
    yield from (f"{figure['shown']} is in figures.json, and the page does not quote it." for figure in page["figures"]
                if figure["shown"] not in everywhere)


def _time(page: Page, ran: Ran) -> Iterable[str]:
    if "seconds" in page and ran.seconds > SLOWER * max(page["seconds"], 0.2):
        yield f"its code takes {ran.seconds:.1f} seconds, and the page says {page['seconds']}."


def with_outputs(text: str, outputs: Iterable[str]) -> str:
    """A page with what its blocks printed."""
    each = iter(outputs)

    def block(match: re.Match[str]) -> str:
        output = next(each)
        return f"```python\n{match['code']}```\n" + (f"\n```text\n{output}```\n" if output else "")

    return BLOCK.sub(block, text)


def main() -> int:
    """Run every page that has an entry, or those named, write its outputs and values, and say what it still quotes
    wrongly."""
    entries, wrong = known(), []
    for name in sys.argv[1:] or entries:
        path, page = DOCS / name, entries[name]
        text = path.read_text(encoding="utf-8")
        ran = run(text)
        text = with_outputs(text, ran.outputs)
        path.write_text(text, encoding="utf-8")
        for figure in page["figures"]:
            value = value_of(figure, ran.names, DOCS.parent)
            figure.update({} if value is None else {"value": float(f"{value:.9g}")})
        wrong += problems(name, text, page, ran, DOCS.parent)
        print(f"{name}: {ran.seconds:.2f} seconds")
    FILE.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(wrong) or "Every page agrees with its figures.")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
