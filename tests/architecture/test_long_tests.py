"""The list of long tests names tests that there are, is what its rule chooses, and is not what continuous integration
leaves out."""

from __future__ import annotations

import ast
from pathlib import Path

import long_tests
from long_tests import KEPT, LIMIT, TESTS, TOGETHER


def functions(file: str) -> set[str]:
    return {node.name for node in ast.parse((TESTS / file).read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_the_list_names_tests_that_there_are() -> None:
    names = {name.partition("[")[0].partition("::")[::2] for name in long_tests.long_tests()}
    gone = {file: set(each) for file in {file for file, _ in names}
            if (each := {name for place, name in names if place == file} - (
                functions(file) if (TESTS / file).exists() else set()))}
    assert not gone, "renamed or deleted: change tests/long_tests.txt with them"


def test_what_always_stays_is_in_no_list() -> None:
    assert not [name for name in long_tests.long_tests() if long_tests.is_of(name, KEPT)]
    for pattern in (*KEPT[:-1], *TOGETHER):
        file, _, name = pattern.partition("[")[0].removesuffix("*").partition("::")
        assert (TESTS / file).exists() and (not name or name in functions(file)), f"{pattern} is the name of no test"


def test_the_rule_leaves_out_what_is_long_and_keeps_a_case_of_each() -> None:
    times = {"a.py::test_one": LIMIT + 0.1, "a.py::test_two": LIMIT, "a.py::test_three[x]": 9.0,
             "a.py::test_three[y]": 8.0, "a.py::test_three[z]": 0.1, "a.py::test_four[x]": 5.0,
             "a.py::test_four[y]": 6.0, "architecture/test_house.py::test_rule": 7.0}
    assert long_tests.chosen(times) == ["a.py::test_four[y]", "a.py::test_one", "a.py::test_three[x]",
                                        "a.py::test_three[y]"]


def test_the_longest_of_several_records_counts(tmp_path: Path) -> None:
    for number, seconds in enumerate((1.0, 3.0, 2.0)):
        (tmp_path / f"{number}.xml").write_text(
            f'<testsuites><testsuite><testcase classname="tests.laws.test_x" name="test_a[0]" time="{seconds}"/>'
            "</testsuite></testsuites>")
    assert long_tests.recorded(sorted(tmp_path.iterdir())) == {"laws/test_x.py::test_a[0]": 3.0}


def test_continuous_integration_runs_all_tests() -> None:
    root = TESTS.parent
    assert "make test-whole\n" in (root / ".ci" / "run").read_text(encoding="utf-8")
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\ntest-whole: $(STAMP)\n")[2].partition("\n\n")[0]
    assert "$(PYTEST)" in recipe and "--quick" not in recipe and " -k" not in recipe
