"""``weft rate``: files of preferences, the table, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Weft = Callable[..., Any]
Refuse = Callable[..., str]

GAMES = [("x", "y", "model_a"), ("y", "x", "model_b"), ("x", "y", "tie"), ("y", "x", "y"), ("x", "y", "tie (bothbad)")]
QUICK = ("--resamples", "0")


def csv(path: Path, rows: list[tuple[str, ...]], first: str = "model_a,model_b,winner") -> Path:
    path.write_text("\n".join([first, *(",".join(row) for row in rows)]) + "\n")
    return path


@pytest.fixture
def games(tmp_path: Path) -> Path:
    """A table in which x won two of five games, y one, and two are tied."""
    return csv(tmp_path / "games.csv", GAMES)


def test_a_table_shows_order_intervals_and_overlaps(weft: Weft, tmp_path: Path) -> None:
    told = weft("rate", csv(tmp_path / "g.csv", GAMES * 8), "--resamples", "50")
    assert told.code == 0, told
    title, head, one, other, *_ = told.out.splitlines()
    assert title == "bradley-terry: 40 games (16 tied), 2 models"
    assert head.split() == ["model", "rating", "interval", "games", "points", "rank", "overlaps"]
    assert one.split()[:3] == ["1", "x", "1035.2"] and one.split()[-4:] == ["40", "60.0%", "1", "2"]
    assert other.split()[:3] == ["2", "y", "964.8"] and other.split()[-4:] == ["40", "40.0%", "1", "1"]
    assert "Intervals: 95%, of 50 bootstrap samples" in " ".join(told.out.split())


def test_elo_says_that_order_counts(weft: Weft, games: Path) -> None:
    told = weft("rate", games, "--method", "elo", "--k", "32", *QUICK)
    assert "depend on the order of the games, which is the file's" in " ".join(told.out.split())
    told = weft("rate", games, "--method", "elo", "--orders", "7", *QUICK)
    assert "Median over 7 shuffled orders" in told.out


def test_every_published_form_gives_the_same_ratings(weft: Weft, games: Path, tmp_path: Path) -> None:
    wanted = weft("rate", games, *QUICK, "--json").json()
    assert wanted["method"] == "bradley-terry" and wanted["games"] == 5 and wanted["ties"] == 2
    assert wanted["settings"]["scale"] == 400 and wanted["models"][0]["name"] == "x"
    (tmp_path / "g.jsonl").write_text("".join(json.dumps({"model_a": a, "model_b": b, "winner": w}) + "\n"
                                              for a, b, w in GAMES))
    scores = {"model_a": "1,0,0", "model_b": "0,1,0", "y": "1,0,0"}
    flags = csv(tmp_path / "flags.csv", [(a, b, scores.get(w, "0,0,1")) for a, b, w in GAMES],
                "model_a,model_b,winner_model_a,winner_model_b,winner_tie")
    named = csv(tmp_path / "named.csv", GAMES, "left,right,better")
    for file, *more in ((tmp_path / "g.jsonl",), (flags,), (named, "--model-a-field", "left", "--model-b-field",
                                                            "right", "--winner-field", "better")):
        assert weft("rate", file, *more, *QUICK, "--json").json() == wanted


def test_ratings_are_written_to_a_new_file_and_never_over_another(weft: Weft, refused: Refuse, games: Path,
                                                                  tmp_path: Path) -> None:
    told = weft("rate", games, *QUICK, "--out", tmp_path / "r.json", "--json")
    assert json.loads((tmp_path / "r.json").read_text()) == told.json()
    assert "r.json" in refused("rate", games, *QUICK, "--out", tmp_path / "r.json")


@pytest.mark.parametrize(("rows", "what"), [
    ([("x", "y", "z")], "g.csv, line 2: the winner is 'z', and the game is between 'x' and 'y'. Write one of these two "
                        "names, model_a, model_b, or tie."),
    ([("x", "y", "")], "g.csv, line 2: the field 'winner' is empty. Name the winner, or write tie, or leave that game"),
    ([("x", "x", "tie")], "g.csv, line 2: 'x' meets itself, which says nothing about it. Leave that game out."),
    ([("", "x", "tie")], "g.csv, line 2: a model without a name. Name both models of every game."),
    ([("x", "tie", "tie")], "g.csv, line 2: the winner 'tie' is the name of one model and the word for another"),
    ([], "g.csv: there is no game. Give one game a line."),
    ([("x", "y", "x")], "games: 'x' won all of its games")])
def test_games_that_say_nothing_are_refused(refused: Refuse, tmp_path: Path, rows: list[tuple[str, ...]],
                                            what: str) -> None:
    assert what in refused("rate", csv(tmp_path / "g.csv", rows), *QUICK)


def test_files_that_are_no_games_are_refused(refused: Refuse, games: Path, tmp_path: Path) -> None:
    assert "no field 'winner'; the fields are: 'model_a', 'model_b', 'who'." in refused(
        "rate", csv(tmp_path / "g.csv", GAMES, "model_a,model_b,who"))
    assert "Name the one that holds the winner with winner_field." in refused(
        "rate", csv(tmp_path / "g.csv", GAMES, "model_a,model_b,who"))
    assert "exactly one of the outcomes must be 1 and the others 0: winner_model_a '1', winner_model_b '1'" in refused(
        "rate", csv(tmp_path / "g.csv", [("x", "y", "1,1,0")], "model_a,model_b,winner_model_a,winner_model_b,"
                                                                 "winner_tie"))
    (tmp_path / "n.jsonl").write_text('{"model_a": "x", "model_b": "y", "winner": null}\n')
    assert "n.jsonl, line 1: the field 'winner' is null." in refused("rate", tmp_path / "n.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    assert "empty.jsonl: there is no game." in refused("rate", tmp_path / "empty.jsonl")
    (tmp_path / "empty.csv").write_text("")
    assert "empty.csv: the first line of the table is missing." in refused("rate", tmp_path / "empty.csv")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    assert "a list, while each line of a JSONL file is an object" in refused("rate", tmp_path / "list.jsonl")
    assert "and this is not one: a folder." in refused("rate", tmp_path)
    assert "its name ends in .json. Give such a file, or rename it to the suffix of its format (one JSON object a " \
           "line: .jsonl)" in refused("rate", tmp_path / "g.json")
    assert "gone.csv: the file cannot be read (No such file or directory)" in refused("rate", tmp_path / "gone.csv")


@pytest.mark.parametrize(("options", "what"), [
    (("--method", "glicko"), "--method: no method 'glicko'. Known names: bradley-terry, elo."),
    (("--k", "8"), "--k: a number of the method elo, and the method is bradley-terry. Leave it out, or give --method"),
    (("--method", "elo", "--virtual-ties", "1"), "--virtual-ties: a number of the method bradley-terry"),
    (("--confidence", "95"), "confidence: 95.0, which must lie between 0 and 1. Give a share, such as 0.95.")])
def test_options_of_the_other_method_are_refused(refused: Refuse, games: Path, options: tuple[str, ...],
                                                 what: str) -> None:
    assert what in refused("rate", games, *options)
