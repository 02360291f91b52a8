"""Beam search finds the sequences and scores of transformers, with a length penalty that is a power of the length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from against_transformers.cases.bart import CASES as BART
from against_transformers.cases.t5 import CASES as T5
from against_transformers.tiny import Case, given, saved
from weft import api
from weft.core.model import LanguageModel
from weft.decoding import beam_search

STEPS, BEAMS, PADDING = 7, 3, 66


def until(ids: list[int], stop: int) -> list[int]:
    """The ids up to the stop token, behind which there is padding."""
    return ids[:ids.index(stop) + 1] if stop in ids else ids


@pytest.mark.parametrize("penalty", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("case", [T5[1], BART[0]], ids=lambda case: case.name)
def test_sequences_and_scores_are_those_of_transformers(case: Case, penalty: float, tmp_path: Path) -> None:
    """Each row by itself there. ``early_stopping="never"`` is the bound that Weft has: a row ends when no hypothesis of
    full length could rank higher. (The class of T5 does not decode with fewer layers in its encoder.)"""
    model: Any = saved(case, tmp_path)
    loaded = api.load(tmp_path).model
    assert isinstance(loaded, LanguageModel)
    rows = [{**row, "target": row["target"][:1]} for row in given(case, (3, 8, 1))]
    stop = beam_search(loaded, rows, max_new_tokens=STEPS, beams=BEAMS).rows[0][1].tokens[3]  # so that it is met
    found = beam_search(loaded, rows, max_new_tokens=STEPS, beams=BEAMS, length_penalty=penalty, stop=[stop])
    for row, hypotheses in zip(rows, found.rows, strict=True):
        with torch.no_grad():
            theirs = model.generate(
                torch.tensor([row["source"]]), decoder_start_token_id=row["target"][0], num_beams=BEAMS,
                num_return_sequences=BEAMS, max_new_tokens=STEPS, length_penalty=penalty, early_stopping="never",
                eos_token_id=stop, pad_token_id=PADDING, forced_eos_token_id=None, do_sample=False,
                return_dict_in_generate=True, output_scores=True)
        sequences = [tuple(until(ids[1:], stop)) for ids in theirs.sequences.tolist()]
        assert [one.tokens for one in hypotheses] == sequences
        assert [one.score for one in hypotheses] == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-4)
