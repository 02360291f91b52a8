"""Hidden vectors, attention weights and sizes of states in one call, against the layers run by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tasks.task_runs import ENCODER, ENCODER_DECODER, built
from weft.core.errors import InputError, UnsupportedError
from weft.core.model import EncoderInputs, LanguageModel
from weft.tokenizers import ByteTokenizer

HYBRID: dict[str, Any] = {"kind": "decoder", "d_model": 8, "context": 16, "blocks": [
    {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}, {"kind": "mlp", "d_ff": 16}]},
    {"kind": "pre", "layers": ["lstm"]}]}


def test_a_hybrid_shows_its_streams_weights_and_state() -> None:
    model = built(HYBRID, vocab_size=257)
    assert isinstance(model, LanguageModel)
    found = weft.insides(model, [[5, 3, 9, 4], [7]])
    row, alone = found
    assert (row.tokens, alone.tokens) == ((5, 3, 9, 4), (7,))
    assert set(row.streams) == {"stack.layers.0", "stack.layers.1"}
    with torch.no_grad():
        whole = model.hidden(torch.tensor([[5, 3, 9, 4]]), None).y[0]
        block = model.get_submodule("stack.layers.0")
        first = block(model.get_parameter("embedding.tokens.weight")[[5, 3, 9, 4]][None]).y[0]
    torch.testing.assert_close(row.last, whole)
    torch.testing.assert_close(row.streams["stack.layers.0"], first)
    (weights,) = row.weights.values()
    assert weights.shape == (2, 4, 4) and torch.allclose(weights.sum(-1), torch.ones(2, 4, dtype=torch.float64))
    assert (weights.triu(1) == 0).all() and not row.last.requires_grad
    sizes = {path: size for path, size in row.state_bytes.items() if "key" in path or "value" in path}
    assert sizes and sum(sizes.values()) >= 2 * 4 * 8 * 8, "keys and values of four tokens in float64"


def test_an_encoder_and_a_checkpoint(tmp_path: Path) -> None:
    model = built(ENCODER, vocab_size=257)
    weft.save(model, tmp_path / "saved", tokenizer=ByteTokenizer())
    (row,) = weft.insides(tmp_path / "saved", "ab")
    assert row.tokens == (256, 97, 98) and row.state_bytes == {} and len(row.streams) == 1
    with torch.no_grad():
        whole = model.eval().vectors(EncoderInputs(tokens=torch.tensor([row.tokens]))).y[0]
    torch.testing.assert_close(row.last, whole)
    with pytest.raises(InputError, match=r"no tokenizer"):
        weft.insides(model, "ab")


def test_models_of_sources_are_refused() -> None:
    model = built(ENCODER_DECODER, vocab_size=9, encoder={**ENCODER, "vocab_size": 9})
    with pytest.raises(UnsupportedError, match=r"model: a model of kind 'encoder_decoder' does not read rows of tokens "
                                               r"alone\. Give a language model or an encoder of tokens; weft\.probe"):
        weft.insides(model, [[1, 2]])
