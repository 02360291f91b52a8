"""Folders that predict from text what Weft predicts: the tokens around a text, and the head of the folder's family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

from interop.huggingface.tiny_folders import write
from weft import api
from weft.checkpoints import save_checkpoint
from weft.core.model import parse_model
from weft.tasks.answers import text_row
from weft.tokenizers import Tokenizer, WordPieceTokenizer
from weft.tokenizers.bpe import BPETokenizer
from weft.tokenizers.published import read_tokenizer
from weft.training.starting import with_start

TEXTS = ["the plot is good and the film is not bad", "a bad plot", "good films and good plots, bad acting."] * 9
LAYER = {"kind": "layernorm", "eps": 1e-12}
BERT = {"kind": "encoder", "d_model": 8, "context": 32, "n_types": 2, "embedding": {"norm": LAYER}, "norm": "none",
        "position": {"kind": "learned", "max_length": 32},
        "head": {"kind": "pooled", "transform": True, "labels": ["bad", "good"]},
        "blocks": [{"kind": "post", "norm": LAYER, "layers": [
            {"kind": "attention", "n_heads": 2, "bias": "all", "mask": "bidirectional"},
            {"kind": "mlp", "d_ff": 8, "activation": "gelu", "bias": True}]}]}


def of_file(folder: Path) -> Tokenizer:
    """WordPiece of a ``vocab.txt`` alone."""
    letters = "abcdefghijklmnopqrstuvwxyz.,"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters,
                                                 *(f"##{letter}" for letter in letters)]))
    return read_tokenizer(folder)


@pytest.mark.parametrize("kind", ["wordpiece", "vocab.txt", "bpe"])
def test_a_classifier_is_written_with_the_tokens_around_its_texts(kind: str, tmp_path: Path) -> None:
    tokenizer = (of_file(tmp_path / "v") if kind == "vocab.txt" else WordPieceTokenizer.train(TEXTS, 48)
                 if kind == "wordpiece" else BPETokenizer.train(TEXTS, 270))
    model = parse_model({**BERT, "vocab_size": tokenizer.vocab_size}).build()
    save_checkpoint(tmp_path / "a", model, tokenizer)
    api.convert(tmp_path / "a", tmp_path / "b", to="hf")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "b/tokenizer.json"))
    assert library.encode("a bad film").ids == list(text_row(tokenizer, "a bad film")[0])
    pair, second = text_row(tokenizer, "a bad film", "plot")
    found = library.encode("a bad film", "plot")
    assert found.ids == list(pair) and sum(found.type_ids) == second > 1
    settings = json.loads((tmp_path / "b/tokenizer_config.json").read_text())
    assert [library.token_to_id(settings[role]) for role in ("cls_token", "sep_token")] == [pair[0], pair[-1]]
    assert settings["pad_token"] == ("<|endoftext|>" if kind == "bpe" else "[PAD]")
    assert settings["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]


def test_a_new_head_has_what_that_of_the_family_has(tmp_path: Path) -> None:
    """So that the three lines of docs/families.md, which name nothing but its kind, give a model that is written."""
    write(tmp_path, "bert")
    found = with_start({"start": str(tmp_path), "model": {"head": {"kind": "pooled"}}})["model"]["head"]
    assert found == {"kind": "pooled", "transform": True}
    given = {"start": str(tmp_path), "model": {"head": {"kind": "classifier", "transform": False, "n_classes": 2}}}
    assert with_start(given)["model"]["head"] == {"kind": "classifier", "transform": False, "n_classes": 2}


def test_a_key_that_takes_no_null_is_left_out(tmp_path: Path) -> None:
    """DeBERTa's class refuses ``"legacy": null`` (transformers 5.24), which a model of Weft's own does not know."""
    write(tmp_path / "a", "deberta")
    save_checkpoint(tmp_path / "b", api.load(tmp_path / "a").model, None)
    api.convert(tmp_path / "b", tmp_path / "c", to="hf")
    assert "legacy" not in json.loads((tmp_path / "c/config.json").read_text())
    api.convert(tmp_path / "a", tmp_path / "d", to="hf")
    kept = json.loads((tmp_path / "a/config.json").read_text()).get("legacy")
    assert json.loads((tmp_path / "d/config.json").read_text()).get("legacy") == kept
