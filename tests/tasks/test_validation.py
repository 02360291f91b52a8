"""Bits per byte on held-out text, against sums made by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from training.tiny_runs import ATTENTION, next_token, tiny_run
from weft.core.errors import DataError
from weft.data import Corpus, Document, encode_corpus
from weft.tokenizers import ByteTokenizer
from weft.training.material import prepare
from weft.training.run_training import build_model


def test_bits_per_byte_is_the_sum_over_windows_by_hand(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, ATTENTION)
    torch.manual_seed(0)
    model = build_model(run).double().train()
    corpus = Corpus("two", (Document("a", "héllo wörld"), Document("b", "again")))
    stream = encode_corpus(corpus, ByteTokenizer())
    found = next_token(rows=2).measure(model, stream)
    assert model.training, "the mode is put back"

    model.eval()
    ids = torch.from_numpy(stream.tokens.astype("int64"))
    nats, end = 0.0, 0
    while end < len(ids) - 1:
        start, end = end, min(end + 8, len(ids) - 1)
        first = max(0, end - 8)
        begins = torch.from_numpy(stream.begins[first:end])
        document = begins.long().cumsum(0)
        for target in range(start + 1, end + 1):
            own = torch.nonzero(document[: target - first] == document[target - first - 1])[0, 0] + first
            logits = model(ids[None, own:target]).y[0, -1].detach()
            nats -= float(torch.log_softmax(logits, -1)[ids[target]])
    assert found.tokens == len(ids) - 1
    assert found.bytes == corpus.size_bytes
    assert found.loss == pytest.approx(nats / found.tokens, rel=1e-9)
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / corpus.size_bytes, rel=1e-9)
    assert "windows of 8 tokens advancing by 8" in found.protocol


def test_a_limit_spreads_batches_over_the_stream_and_says_so(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, ATTENTION)
    model, stream = build_model(run), prepare(run).validation
    every = next_token(rows=4).measure(model, stream)
    some = next_token(rows=4).measure(model, stream, 3)
    assert every.tokens == len(stream) - 1
    assert some.tokens < every.tokens / 3
    assert "3 of 19 batches, spread evenly" in some.protocol
    assert "batches" not in every.protocol
    assert some.bits_per_byte != every.bits_per_byte


def test_text_that_leaves_no_byte_to_predict_is_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, ATTENTION)
    stream = encode_corpus(Corpus("bare", (Document("a", ""), Document("b", ""))), ByteTokenizer())
    with pytest.raises(DataError, match="bare: the 2 tokens to predict represent no text"):
        next_token().measure(build_model(run), stream)
