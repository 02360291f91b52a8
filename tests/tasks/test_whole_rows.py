"""Rows that an encoder reads whole: what its head gives for each, with types and global tokens, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tasks.task_runs import ENCODER, built
from weft import api
from weft.checkpoints import save_checkpoint
from weft.core.errors import InputError, UnsupportedError
from weft.core.heads import outputs
from weft.core.model import EncoderInputs
from weft.core.span import Span
from weft.tasks.whole_rows import WholeRow, head_outputs, whole_rows

V = 20
MARKED = {"kind": "pre", "layers": [
    {"kind": "attention", "n_heads": 2, "mask": "bidirectional & (symmetric_window(1, 1) | globals)"}, "mlp"]}
ROWS = [WholeRow((3, 4, 5)), WholeRow((6, 7, 8, 9, 10), types=(0, 0, 1, 1, 1)), WholeRow((11,), types=(1,))]


def model(**fields: Any) -> Any:
    return built(ENCODER, vocab_size=V, **{"n_types": 2, **fields}).eval()


@pytest.mark.parametrize("head", [None, "masked_token", {"kind": "pooled", "n_classes": 3},
                                  {"kind": "per_token", "n_classes": 3}], ids=str)
def test_each_row_is_that_row_alone(head: Any) -> None:
    found = model(head=head)
    given = head_outputs(found, ROWS)
    for row, values in zip(ROWS, given, strict=True):
        types = torch.tensor([row.types or (0,) * len(row.tokens)])
        with torch.no_grad():
            h = found.vectors(EncoderInputs(tokens=torch.tensor([row.tokens]), types=types)).y
            wanted = outputs(found.head, h, Span())[0]
        torch.testing.assert_close(values.double(), wanted, rtol=1e-5, atol=1e-6)  # given in float32
    assert given[1].shape[0] == (3 if isinstance(head, dict) and head["kind"] == "pooled" else 5)


def test_global_tokens_are_read_by_the_mask() -> None:
    found = model(blocks=[MARKED], n_types=0)
    row = (1, 2, 3, 4, 5, 6, 7)
    apart, marked = (head_outputs(found, [WholeRow(row, globals_=marks)])[0]
                     for marks in ((0,) * 7, (1, 0, 0, 0, 0, 0, 0)))
    assert torch.equal(apart, head_outputs(found, [WholeRow(row)])[0])
    changed = (apart - marked).abs().amax(-1) > 1e-6
    assert changed.tolist() == [True, False, *[True] * 5], "its neighbour sees it in any case"


@pytest.mark.parametrize(("row", "message"), [
    (WholeRow((1, 2), types=(0,)), r"rows\[1\]\.types: 1 for 2 tokens\. Give one for each token"),
    (WholeRow((1, 2), types=(0, 2)), r"rows\[1\]\.types\[1\]: 2, and this model has 0, 1 alone\. Give one of these"),
    (WholeRow((1,), globals_=(1,)), r"rows\[1\]\.global: this model does not read global\. Leave them out"),
    (WholeRow((1,) * 17), r"rows\[1\]: 17 tokens, and this model has positions for 16 tokens\. Give a shorter row"),
    (WholeRow((V,)), r"rows\[1\]: an id outside the vocabulary, 0 \.\. 19"),
    (WholeRow(()), r"rows\[1\]: no tokens\. Give at least one")])
def test_rows_that_a_model_cannot_take_are_refused(row: WholeRow, message: str) -> None:
    with pytest.raises(InputError, match=message):
        whole_rows(model(), [WholeRow((1,)), row])


def test_types_of_a_model_without_them_are_refused_and_a_pair_has_none() -> None:
    with pytest.raises(InputError, match=r"rows\[0\]\.types: this model does not read types\. Leave them out"):
        whole_rows(model(n_types=0), [WholeRow((1,), types=(0,))])
    assert [row.types for row in whole_rows(model(n_types=1), [(1, 2, 3)], [2])] == [None]
    assert [row.types for row in whole_rows(model(), [(1, 2, 3), (4,)], [2, 0])] == [(0, 1, 1), None]


def test_an_encoder_without_a_head_gives_hidden_vectors_on_request(tmp_path: Any) -> None:
    save_checkpoint(tmp_path / "model", model(head=None).float(), None)
    found = api.score(tmp_path / "model", [[1, 2, 3], {"tokens": [4], "types": [1]}], logits=True)
    assert found.logits is not None and [each.shape for each in found.logits] == [(3, 8), (1, 8)]
    assert [row.scored for row in found.rows] == [0, 0]
    with pytest.raises(UnsupportedError, match=r"without a head that predicts tokens.*--logits FILE"):
        api.score(tmp_path / "model", [[1, 2, 3]])
    with pytest.raises(InputError, match=r"rows\[0\]: the row has a source, and this model takes none"):
        api.score(tmp_path / "model", [{"source": [1], "target": [2]}], logits=True)
