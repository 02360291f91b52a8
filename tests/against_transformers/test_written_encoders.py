"""Encoders of every family, with a tokenizer of Weft: what transformers predicts of texts and pairs of texts from what
is written is what Weft predicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from against_transformers.tiny import Case, encoder_cases, saved
from interop.huggingface.test_from_text import TEXTS
from weft import api
from weft.checkpoints import save_checkpoint
from weft.tokenizers import BPETokenizer, WordPieceTokenizer

QUESTIONS = ["a bad film", "the plot is good and the film is not bad", "no"]
TOLERANCE = 2e-5
"""On float32 scores of the size 5, of batches of another shape."""
HEADED = [case for case in encoder_cases() if case.model.endswith(("ForSequenceClassification",
                                                                   "ForTokenClassification"))]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
@pytest.mark.parametrize("case", HEADED, ids=lambda case: case.name)
def test_predictions_of_texts_and_pairs(case: Case, kind: str, tmp_path: Path) -> None:
    saved(replace(case, values={**case.values, "vocab_size": 300}), tmp_path / "source")
    tokenizer = BPETokenizer.train(TEXTS, 289) if kind == "bpe" else WordPieceTokenizer.train(TEXTS, 48)
    save_checkpoint(tmp_path / "a", api.load(tmp_path / "source").model, tokenizer)
    api.convert(tmp_path / "a", tmp_path / "b", to="hf")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    theirs: Any = getattr(transformers, case.model).from_pretrained(tmp_path / "b").eval()
    for second in ([], [QUESTIONS[:1] * 3]):
        given = read(QUESTIONS, *second, padding=True, return_tensors="pt")
        with torch.no_grad():
            found = theirs(**given).logits.log_softmax(-1)
        rows: Any = [(text, QUESTIONS[0]) for text in QUESTIONS] if second else QUESTIONS
        for folder in "ab":  # what Weft reads back predicts the same
            for index, answer in enumerate(api.classify(tmp_path / folder, rows)):
                wanted = torch.tensor(answer.scores)
                ours = found[index][None] if len(wanted) == 1 else found[index][given["attention_mask"][index].bool()]
                torch.testing.assert_close(ours, wanted, atol=TOLERANCE, rtol=0)
