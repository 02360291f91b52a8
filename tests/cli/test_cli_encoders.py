"""`weft score` on folders of encoders: rows with types, logits, hidden vectors, classes, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cli.conftest import Weft
from interop.huggingface.tiny_folders import stored, write

Refuse = Callable[..., str]
ROWS = [[5, 1, 12, 0], {"tokens": [7, 7, 3], "types": [0, 1, 1]}]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS))
    return path


@pytest.mark.parametrize(("case", "shapes"), [("bert", [[4, 13], [3, 13]]), ("deberta", [[4, 12], [3, 12]]),
                                              ("roberta", [[2], [2]]), ("deberta_v2", [[4, 3], [3, 3]])])
def test_what_a_folder_s_head_gives_is_written(weft: Weft, tmp_path: Path, case: str, shapes: list[list[int]]) -> None:
    """Logits of tokens, hidden vectors without a head, scores of rows, scores of tokens."""
    write(tmp_path / "model", case)
    path, out = tmp_path / "plain.json", tmp_path / "out.safetensors"
    path.write_text(json.dumps([ROWS[0], [7, 7, 3], stored()[case]["row"]]))
    told = weft("score", tmp_path / "model", "--rows", path, "--logits", out)
    assert told.code == 0, told.err
    found = load_file(out)
    assert [list(found[f"row_{index}"].shape) for index in range(2)] == shapes and f"wrote {out}" in told.out
    wanted = torch.tensor(stored()[case]["logits"])
    torch.testing.assert_close(torch.atleast_2d(found["row_2"])[-len(wanted):], wanted, atol=5e-5, rtol=0)
    classes = case in ("roberta", "deberta_v2")
    assert ("row 0" in told.out and "values of shape" not in told.out) if classes else (
        f"row 0: no tokens scored; values of shape {shapes[0]}" in told.out)


def test_types_change_what_is_read(weft: Weft, tmp_path: Path, rows: Path) -> None:
    write(tmp_path / "model", "bert")
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps([[5, 1, 12, 0], [7, 7, 3]]))
    for path, out in ((rows, "typed"), (plain, "plain")):
        assert weft("score", tmp_path / "model", "--rows", path, "--logits", tmp_path / out).code == 0
    typed, untyped = (load_file(tmp_path / name) for name in ("typed", "plain"))
    assert torch.equal(typed["row_0"], untyped["row_0"]) and not torch.equal(typed["row_1"], untyped["row_1"])


@pytest.mark.parametrize(("case", "row", "message"), [
    ("bert", {"tokens": [1, 2], "types": [0, 2]}, "rows[0].types[1]: 2, and this model has 0, 1 alone."),
    ("bert", {"tokens": [1, 2], "types": [0]}, "rows[0].types: 1 for 2 tokens. Give one for each token."),
    ("bert", {"tokens": [1], "global": [1]}, "rows[0].global: this model does not read global. Leave them out."),
    ("bert", [1] * 33, "rows[0]: 33 tokens, and this model has positions for 32 tokens. Give a shorter row."),
    ("deberta", {"tokens": [1], "types": [0]}, "rows[0].types: this model does not read types. Leave them out.")])
def test_rows_that_a_model_cannot_take(refused: Refuse, tmp_path: Path, case: str, row: object, message: str) -> None:
    write(tmp_path / "model", case)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps([row]))
    assert message in refused("score", tmp_path / "model", "--rows", path, "--logits", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_hidden_vectors_are_offered_where_there_is_no_head(refused: Refuse, tmp_path: Path, rows: Path) -> None:
    write(tmp_path / "model", "deberta")
    rows.write_text(json.dumps([[1, 2]]))
    message = refused("score", tmp_path / "model", "--rows", rows)
    assert "without a head that predicts tokens" in message and "--logits FILE" in message
