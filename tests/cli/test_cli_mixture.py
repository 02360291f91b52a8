"""``weft data mixture``: the tables, files of one's own, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Weft = Callable[..., Any]
Refuse = Callable[..., str]

OWN = """target: 300e9
max_epochs: 4
sources:
  web: {tokens: 410e9, weight: 0.9}
  books: {tokens: 5e9, weight: 0.1}
"""


def test_the_table_of_gpt3_stands_beside_what_it_implies(weft: Weft) -> None:
    told = weft("data", "mixture")
    assert told.code == 0, told
    lines = [line.split() for line in told.out.splitlines()]
    assert ["WebText2", "19.0", "G", "0.22", "2.9", "3.47"] in lines
    assert ["Wikipedia", "3.00", "G", "0.03", "3.4", "3.00"] in lines
    assert "The weights add up to 1.01;" in told.out and "table 2.2" in told.out and "expected" not in told.out
    more = weft("data", "mixture", "gpt3", "--target", "600e9", "--max-epochs", "4")
    assert ["WebText2", "19.0", "G", "0.22", "2.9", "3.47"] in [line.split() for line in more.out.splitlines()]
    assert "expected of 600 G tokens, at most 4 epochs of any source" in more.out and "capped" in more.out


@pytest.mark.parametrize(("name", "count", "line"), [("pile", 22, "Enron Emails 0.88 0.0014 2 2.00"),
                                                     ("dolma", 6, "Reddit 89.0 G none none 1.00")])
def test_other_published_mixtures_are_shown(weft: Weft, name: str, count: int, line: str) -> None:
    told = weft("data", "mixture", name)
    assert line in [" ".join(each.split()) for each in told.out.splitlines()]
    assert len(weft("data", "mixture", name, "--json").json()["sources"]) == count


def test_a_file_of_one_s_own_is_planned(weft: Weft, tmp_path: Path) -> None:
    (tmp_path / "mix.yaml").write_text(OWN)
    found = weft("data", "mixture", tmp_path / "mix.yaml", "--json").json()
    assert [(each["source"]["name"], each["capped"]) for each in found["sources"]] == [("web", False), ("books", True)]
    assert [each["read"] for each in found["sources"]] == pytest.approx([280e9, 20e9])
    told = weft("data", "mixture", tmp_path / "mix.yaml")
    assert "books 5.00 G 0.1 6.67% 20.0 G 4.000 capped" in [" ".join(each.split()) for each in told.out.splitlines()]
    assert "expected of 300 G tokens, at most 4 epochs of any source" in told.out
    assert "What capped sources do not take, the others take in proportion to their weights." in told.out


@pytest.mark.parametrize(("text", "what"), [
    (OWN.replace("weight: 0.1", "weight: -1"), "sources.books.weight"),
    (OWN.replace("tokens: 5e9, ", ""), "sources.books.tokens"),
    (OWN.replace("max_epochs", "cap"), "cap: unknown key 'cap'"),
    ("sources: {}\ntarget: 1", "sources"),
    (OWN.replace("target: 300e9", ""), "nothing says how many tokens are read in all")])
def test_a_wrong_file_is_refused_with_the_place(refused: Refuse, tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "mix.yaml").write_text(text)
    assert what in refused("data", "mixture", tmp_path / "mix.yaml")


def test_an_unknown_mixture_is_refused(refused: Refuse, tmp_path: Path) -> None:
    assert "'gpt-3' is neither a published mixture nor a YAML or JSON file. Did you mean 'gpt3'?" in refused(
        "data", "mixture", "gpt-3")
    assert "gone.yaml: 1 problem in the configuration: - the file cannot be read" in refused(
        "data", "mixture", tmp_path / "gone.yaml")
