"""Mutants: the source with one mistake in it, and the tests that must see it.

They stand in `lists/*.toml`, one table each:

    [name]                                  what is wrong, in a few words
    file = "norms/layernorm.py"             under src/weft
    was = "the exact text"                  which occurs there once
    now = "what stands there instead"
    tests = ["norms/test_norms.py::test"]   under tests; at least one of them must fail
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src"
LISTS = Path(__file__).parent / "lists"


@dataclass(frozen=True)
class Mutant:
    """One mistake. ``file`` lies under the source's ``weft``, ``tests`` are pytest's names, seen from ``tests``."""

    name: str
    file: str
    was: str
    now: str
    tests: tuple[str, ...]

    def mutated(self, text: str) -> str:
        """The file's text with the mistake."""
        return text.replace(self.was, self.now)

    def trouble(self, source: Path = SOURCE, tests: Path = TESTS) -> Iterator[str]:
        """Why this mutant no longer fits the source or the tests."""
        path = source / "weft" / self.file
        if not path.is_file():
            yield f"{self.name}: there is no file {self.file}"
            return
        text = path.read_text(encoding="utf-8")
        if (times := text.count(self.was)) != 1:
            yield f"{self.name}: `{self.was}` occurs {times} times in {self.file}"
        elif same_code(text, self.mutated(text)):
            yield f"{self.name}: the code of {self.file} stays the same"
        if not self.tests:
            yield f"{self.name}: no test is named"
        for test in self.tests:
            file, *names = test.split("[")[0].split("::")
            if not (tests / file).exists():
                yield f"{self.name}: there is no {file}"
            elif names and f"def {names[-1]}(" not in (tests / file).read_text(encoding="utf-8"):
                yield f"{self.name}: {file} has no {names[-1]}"


def same_code(one: str, other: str) -> bool:
    """Whether two texts of Python differ in comments and spaces at most; one that is no Python differs."""
    try:
        return _code(one) == _code(other)
    except SyntaxError:
        return False


@lru_cache(maxsize=256)
def _code(text: str) -> str:
    return ast.dump(ast.parse(text))


def read(lists: Path = LISTS) -> list[Mutant]:
    """All mutants, in the order of the files' names."""
    found = [Mutant(name, table["file"], table["was"], table["now"], tuple(table["tests"]))
             for path in sorted(lists.glob("*.toml"))
             for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items()]
    twice = [name for name, times in Counter(each.name for each in found).items() if times > 1]
    if twice:
        raise ValueError(f"names that stand in two lists: {', '.join(twice)}")
    return found
