"""The lists fit the source and the tests, and the runner tells a mutant that is seen from one that survives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mutants.mutant import TESTS, Mutant, read, same_code
from mutants.run import chosen, report

LEAST = 100
SOURCE = "def double(x):\n    return 2 * x\n"
TEST = "from weft.maths import double\n\ndef test_double():\n    assert double(3) == 6\n"


def test_every_mutant_fits_the_source_and_names_tests_that_exist() -> None:
    mutants = read()
    assert [line for mutant in mutants for line in mutant.trouble()] == []
    assert len(mutants) >= LEAST


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """A source of one function, and its test."""
    source, tests = tmp_path / "src", tmp_path / "tests"
    for path, text in ((source / "weft" / "__init__.py", ""), (source / "weft" / "maths.py", SOURCE),
                       (tests / "test_maths.py", TEST)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return source, tests


def mutant(**changes: str) -> Mutant:
    values = {"name": "m", "file": "maths.py", "was": "2 * x", "now": "3 * x", "test": "test_maths.py", **changes}
    return Mutant(values["name"], values["file"], values["was"], values["now"], (values["test"],))


RUN = """
import sys
from pathlib import Path
from mutants.mutant import Mutant
from mutants.run import attempt, report
source, tests, *mistakes = sys.argv[1:]
sys.exit(report([attempt(Mutant(now, "maths.py", "2 * x", now, ("test_maths.py",)), Path(source), Path(tests))
                 for now in mistakes]))
"""


def test_verdicts(small: tuple[Path, Path]) -> None:
    """In a process of its own: the one of the tests may have a server already, which knows the real source."""
    source, tests = small
    done = subprocess.run([sys.executable, "-c", RUN, str(source), str(tests), "3 * x", "x + x", "2 * * x"], text=True,
                          check=False, stdout=subprocess.PIPE, cwd=TESTS)
    assert done.stdout.splitlines()[-1] == "3 mutants: 1 seen, 1 survive, 1 broken", done.stdout
    assert done.returncode == 1
    assert "survives: x + x\n" in done.stdout and "broken: 2 * * x\n" in done.stdout and "+ 3 * x" not in done.stdout
    assert (source / "weft/maths.py").read_text(encoding="utf-8") == SOURCE
    assert report([]) == 0


@pytest.mark.parametrize(("changes", "trouble"), [
    ({"file": "gone.py"}, "m: there is no file gone.py"),
    ({"was": "x"}, "m: `x` occurs 2 times in maths.py"),
    ({"was": "4 * x"}, "m: `4 * x` occurs 0 times in maths.py"),
    ({"now": "2 *  x"}, "m: the code of maths.py stays the same"),
    ({"test": "test_gone.py"}, "m: there is no test_gone.py"),
    ({"test": "test_maths.py::test_gone[1]"}, "m: test_maths.py has no test_gone"),
])
def test_a_mutant_that_does_not_fit_is_told(changes: dict[str, str], trouble: str, small: tuple[Path, Path]) -> None:
    assert list(mutant(**changes).trouble(*small)) == [trouble]
    assert list(mutant().trouble(*small)) == []


def test_comments_are_no_mistake() -> None:
    assert same_code("x = 1  # one", "x = 1") and not same_code("x = 1", "x = 2") and not same_code("x = 1", "x = = 1")


def test_names_choose_mutants() -> None:
    assert {each.name.split("-")[0] for each in chosen(["beam-*", "holm-step"])} == {"beam", "holm"}
    with pytest.raises(SystemExit, match="no mutant is named so: nothing-of-the-kind"):
        chosen(["nothing-of-the-kind"])


def test_a_name_stands_once(tmp_path: Path) -> None:
    table = '[twice]\nfile = "a.py"\nwas = "b"\nnow = "c"\ntests = ["d.py"]\n'
    for name in ("one.toml", "two.toml"):
        (tmp_path / name).write_text(table, encoding="utf-8")
    with pytest.raises(ValueError, match="names that stand in two lists: twice"):
        read(tmp_path)
