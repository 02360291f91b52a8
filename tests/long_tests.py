"""The tests that ``make test`` leaves out, so that it takes minutes. Continuous integration runs them too.

``long_tests.txt`` names them: every test that took longer than `LIMIT` when all were run, of a test with cases all such
cases but the shortest, and never one of `KEPT`; and those of `TOGETHER`. It is written from the record of a whole run
on an idle machine:

    make test-whole RECORD=record.xml
    python tests/long_tests.py record.xml

A test that is in no list is run, so what is new is run until the list is written again.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

TESTS = Path(__file__).parent
LIST = TESTS / "long_tests.txt"
LIMIT = 0.5
"""Seconds."""
KEPT = (
    "comparison/test_killed_studies.py::test_a_study_that_is_killed_goes_on_to_the_same_figures",
    "comparison/test_attempts.py::test_each_attempt_tries_the_rates_with_its_own_seeds_and_runs_the_best",
    "training/test_kills.py::test_sigkill_at_random_moments[[]lstm, carried state[]]",
    "integration/test_data_parallel.py::test_the_weights_are_those_of_one_process*",
    "integration/test_data_parallel.py::test_a_rank_that_is_stopped_is_named_and_ends_the_others",
    "integration/test_compile.py::test_compiled_by_inductor_and_equal_to_eager[[]elman[]]",
    "training/test_trainer_compute.py::test_a_compiled_run_follows_an_eager_one",
    "laws/test_check_finds.py::test_a_defect_on_short_rows_is_found_by_its_law_named_and_told_once",
    "laws/test_every_part.py::test_laws_hold[[]mixer.*.0[]]",
    "laws/test_every_part.py::test_laws_hold[[]block.*.0[]]",
    "laws/test_every_part.py::test_laws_hold[[]feedforward.*.0[]]",
    "laws/test_every_part.py::test_laws_hold[[]model.*.0[]]",
    "laws/test_hybrids.py::test_laws_hold[[][0-3][]]",
    "judge/test_museum.py::test_the_exploit_is_caught_in_a_process[[]target_gate[]]",
    "server/test_process.py::test_sigterm_lets_running_answers_end",
    "mutants/test_mutants.py::test_every_mutant_fits_the_source_and_names_tests_that_exist",
    "architecture/*")
"""Patterns of tests that stay however long they take: a piece of work that is killed, processes that train together,
the compiler, the laws of every part that computes, a confined process, a server, the rules of the house."""

TOGETHER = (
    "parallel/test_meshes.py::*",
    "parallel/test_divided.py::*",
    "parallel/test_context.py::test_every_layer_computes_what_one_process_does*",
    "parallel/test_mixture.py::test_the_same_tokens_in_the_same_order*",
    "docs/test_docs_pages.py::*",
    "docs/test_docs_lessons.py::test_every_figure_of_a_page_is_what_its_code_its_recipe_or_its_source_says*")
"""Patterns of tests whose time is that of a fixture, which the first of them waits for: all cases are left out."""


def long_tests() -> frozenset[str]:
    """The names of the tests that are left out, as ``laws/test_hybrids.py::test_laws_hold[4]``."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def name_of(path: Path, name: str) -> str:
    """The name of a test in the list."""
    return f"{path.relative_to(TESTS).as_posix()}::{name}"


def chosen(times: dict[str, float]) -> list[str]:
    """The tests to leave out, by the seconds that every test took."""
    cases: defaultdict[str, list[str]] = defaultdict(list)
    for name in times:
        cases[name.partition("[")[0]].append(name)
    shortest = {min(each, key=times.__getitem__) for each in cases.values() if len(each) > 1}
    return sorted(name for name, seconds in times.items() if is_of(name, TOGETHER) or (
        seconds > LIMIT and name not in shortest and not is_of(name, KEPT)))


def is_of(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns is that of a test."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def recorded(files: Iterable[Path]) -> dict[str, float]:
    """The seconds of every test in records in JUnit's form; the longest where it is in several."""
    times: dict[str, float] = {}
    for file in files:
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            place = str(case.get("classname")).removeprefix("tests.").replace(".", "/")
            name = f"{place}.py::{case.get('name')}"
            if not str(case.get("name")).startswith("test_"):  # of a class, as hypothesis makes them
                continue
            times[name] = max(times.get(name, 0.0), float(str(case.get("time"))))
    return times


def main() -> None:
    times = recorded(map(Path, sys.argv[1:]))
    found = chosen(times)
    left, whole = sum(times[name] for name in found), sum(times.values())
    head = (f"# {len(found)} of {len(times):,} tests, which took {left:,.0f} of {whole:,.0f} seconds of a core in a "
            "whole run.\n# Written by long_tests.py.\n")
    LIST.write_text(head + "".join(f"{name}\n" for name in found), encoding="utf-8")
    print(head, end="")


if __name__ == "__main__":
    main()
