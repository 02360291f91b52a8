"""Longformer's global tokens, marked by the call, with transformers' own mask of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from against_transformers.cases.longformer import ENCODERS
from against_transformers.tiny import TOLERANCE, Case, opened, saved
from weft import api
from weft.core.heads import outputs
from weft.core.model import EncoderInputs
from weft.core.span import Span

MARKED = [case for case in ENCODERS if not case.model.endswith("SequenceClassification")]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in MARKED])
def test_marked_tokens_attend_to_all_through_projections_of_their_own(case: Case, tmp_path: Path) -> None:
    saved(case, tmp_path)
    theirs, ours = opened(tmp_path), api.load(tmp_path).model
    generator = torch.Generator().manual_seed(5)
    tokens, lengths = torch.randint(2, 67, (3, 21), generator=generator), torch.tensor([21, 13, 6])
    valid = torch.arange(21) < lengths[:, None]
    marks = torch.zeros(3, 21, dtype=torch.bool)
    marks[0, [0, 4, 20]], marks[1, 7] = True, True  # the third row has none
    with torch.no_grad():
        wanted = theirs(input_ids=torch.where(valid, tokens, theirs.config.pad_token_id), attention_mask=valid.long(),
                        global_attention_mask=marks.long())
        h = ours.vectors(EncoderInputs(tokens=tokens, globals_=marks), Span(count=lengths)).y
        found = outputs(ours.head, h, Span(count=lengths))
        unmarked = outputs(ours.head, ours.vectors(EncoderInputs(tokens=tokens), Span(count=lengths)).y,
                           Span(count=lengths))
    expected = wanted.last_hidden_state if ours.head is None else wanted.logits
    torch.testing.assert_close(found[valid], expected[valid], atol=TOLERANCE, rtol=0)
    assert float((found - unmarked)[0].abs().max()) > 0.1
