"""Classifiers that Weft wrote predict in `transformers` from text what they predict here; a folder that does not is not
written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from interop.huggingface.test_from_text import BERT, TEXTS
from weft import api
from weft.checkpoints import save_checkpoint
from weft.core.errors import FailedError
from weft.core.model import parse_model
from weft.interop.huggingface import text
from weft.tokenizers import WordPieceTokenizer


def checkpoint(folder: Path) -> Path:
    """A classifier with WordPiece of its own and weights that tell texts apart."""
    tokenizer = WordPieceTokenizer.train(TEXTS, 48)
    model = parse_model({**BERT, "vocab_size": 48}).build()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    save_checkpoint(folder, model, tokenizer)
    return folder


def test_a_padded_batch_of_texts_has_the_predictions_of_weft(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "a")
    api.convert(source, tmp_path / "b", to="hf")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "b").eval()
    texts = ["a bad film", "the plot is good and the film is not bad"]
    with torch.no_grad():
        found = theirs(**read(texts, padding=True, return_tensors="pt")).logits.log_softmax(-1)
    wanted = torch.tensor([answer.scores[0] for answer in api.classify(source, texts)])
    # Float32 on both sides; without the tokens around a text the scores differ by tenths.
    torch.testing.assert_close(found, wanted.float(), atol=1e-5, rtol=0)


def test_a_folder_that_reads_other_tokens_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "with_frame", lambda source, *ends, pairs: source)
    with pytest.raises(FailedError, match=r"transformers reads 'a film\.' as \[.*\], where Weft reads \[2, .*\]\."):
        api.convert(checkpoint(tmp_path / "a"), tmp_path / "b", to="hf")
    assert not (tmp_path / "b").exists()
