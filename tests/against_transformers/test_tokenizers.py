"""SentencePiece models without a tokenizer.json: the ids of transformers' class, special tokens in texts included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers

from weft.data import embedded_corpus
from weft.tokenizers.published import read_tokenizer

TEXTS = ("the self", "<s>the self", "<s> the self", "for</s>the", "for</s> the", "", "<s>", "\nthe", "<s>\nthe",
         "é漢字", "<s>[turn] the [/turn] self </s><s>[turn] for")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("model") / "m"
    lines = [line for text in embedded_corpus(max_bytes=30_000).texts() for line in text.split("\n") if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(place), vocab_size=420, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=3, num_threads=1)
    return place.with_suffix(".model").read_bytes()


@pytest.mark.parametrize("options", [{}, {"legacy": False}, {"legacy": False, "add_prefix_space": False}], ids=str)
def test_text_behind_special_tokens_is_that_of_transformers(options: dict[str, Any], model: bytes,
                                                            tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", **options}))
    theirs: Any = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    ours = read_tokenizer(tmp_path)
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, specials=True) == ids, text
        assert ours.decode(ids, specials=True) == theirs.decode(ids), text
