"""Folders of published vocabularies: what is recognised, and what the files beside it change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer
from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer

from weft.core.errors import TokenizerError
from weft.data import embedded_corpus
from weft.tokenizers import BPETokenizer, FileTokenizer, SentencePieceTokenizer, load_tokenizer, read_tokenizer
from weft.tokenizers.base import require_fits
from weft.tokenizers.config import TokenizerFileConfig
from weft.tokenizers.published import read_sentence_piece

TEXTS = embedded_corpus(max_bytes=20_000).texts()
SAMPLES = [*TEXTS[0].split("\n")[:40], "  Ünï 世界 😀\r\n\n don't  I'LL 12,345 [SEP] </s>"]
BPE = BPETokenizer.train(TEXTS, 320)
END = "<|endoftext|>"


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def pair(folder: Path, vocabulary: str = "vocab.json", merges: str = "merges.txt") -> Path:
    model = json.loads(BPE.files()["tokenizer.json"])["model"]
    (folder / vocabulary).write_text(json.dumps(model["vocab"]), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    (folder / merges).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def bert(folder: Path) -> Path:
    learner = BertWordPieceTokenizer(lowercase=True)
    learner.train_from_iterator(iter(TEXTS), vocab_size=200, show_progress=False)
    ids = learner.get_vocab()
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(ids, key=ids.__getitem__)))
    return folder


def model_file(folder: Path, name: str = "tokenizer.model") -> Path:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(TEXTS).split("\n")), model_prefix=str(folder / "m"), vocab_size=380,
        minloglevel=3, byte_fallback=True, user_defined_symbols=["<turn>"],
    )  # fmt: skip
    (folder / "m.model").rename(folder / name)
    return folder


@pytest.mark.parametrize("names", [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")])
def test_gpt2_files_give_the_ids_of_the_library(names: tuple[str, str], tmp_path: Path) -> None:
    found = read_tokenizer(pair(tmp_path, *names))
    reference = ByteLevelBPETokenizer(str(tmp_path / names[0]), str(tmp_path / names[1]))
    for text in SAMPLES:
        assert found.encode(text) == reference.encode(text).ids == BPE.encode(text)
        assert found.decode(found.encode(text)) == text
    assert (found.bos_id, found.eos_id, found.kind) == (BPE.eos_id, BPE.eos_id, "file")
    assert found.encode(f"a{END}", specials=True) == [*BPE.encode("a"), BPE.eos_id]


def test_classes_cut_words_differently(tmp_path: Path) -> None:
    found = read_tokenizer(write(pair(tmp_path), tokenizer_config={"tokenizer_class": "Qwen2TokenizerFast"}))
    assert found.encode("e\u0301") == found.encode("é")
    assert len(found.encode("1234")) == 4
    write(tmp_path, tokenizer_config={"add_prefix_space": True})
    assert read_tokenizer(tmp_path).encode("the") == BPE.encode(" the")
    write(tmp_path, tokenizer_config={"tokenizer_class": "CLIPTokenizer"})
    with pytest.raises(TokenizerError, match=r"vocab\.json: the tokenizer's class is 'CLIPTokenizer'.*GPT2Tokenizer"):
        read_tokenizer(tmp_path)


def test_the_first_gpts_words_end_in_a_mark(tmp_path: Path) -> None:
    letters = {"<unk>": 0, "t": 1, "h": 2, "e</w>": 3, "th": 4, "the</w>": 5}
    write(tmp_path, vocab=letters, special_tokens_map={"unk_token": "<unk>"})
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\nth e</w>\n")
    found = read_tokenizer(tmp_path)
    assert found.encode("The the") == [5, 5]
    assert found.encode("the x") == [5, 0]
    assert found.decode([5, 5]) == "the the"


def test_bert_files_give_the_ids_of_the_library(tmp_path: Path) -> None:
    found = read_tokenizer(bert(tmp_path))
    reference = BertWordPieceTokenizer(str(tmp_path / "vocab.txt"))
    reference._tokenizer.encode_special_tokens = True
    for text in SAMPLES:
        assert found.encode(text) == reference.encode(text, add_special_tokens=False).ids
    assert found.encode("[CLS] [MASK]", specials=True) == [found.special_tokens[token] for token in ("[CLS]", "[MASK]")]
    assert found.encode("THE") == found.encode("the")
    cased = read_tokenizer(write(tmp_path, tokenizer_config={"do_lower_case": False}))
    assert cased.encode("THE") != cased.encode("the")


def test_sentencepiece_files_are_read_under_both_names(tmp_path: Path) -> None:
    found = read_tokenizer(model_file(tmp_path, "spiece.model"))
    assert isinstance(found, SentencePieceTokenizer)
    assert read_sentence_piece(tmp_path).fingerprint() == found.fingerprint()
    assert read_tokenizer(tmp_path / "spiece.model").fingerprint() == found.fingerprint()
    assert (found.bos_id, found.conventions.adds_bos) == (1, None)


def sentinels_of(folder: Path) -> dict[str, int]:
    return {token: place for token, place in read_tokenizer(folder).special_tokens.items() if "extra_id" in token}


@pytest.mark.parametrize("named", ["config", "tokenizer_config"])
def test_a_model_of_t5_alone_has_the_tokens_for_hidden_spans(named: str, tmp_path: Path) -> None:
    """Behind its pieces, the first with the highest id, as T5's class adds them."""
    says = {"config": {"model_type": "t5"}, "tokenizer_config": {"tokenizer_class": "T5TokenizerFast"}}[named]
    (model_file(tmp_path, "spiece.model") / f"{named}.json").write_text(json.dumps(says))
    found, size = read_tokenizer(tmp_path), len(read_sentence_piece(tmp_path / "spiece.model").pieces) - 100
    assert found.vocab_size == size + 100 and found.conventions.adds_eos
    assert sentinels_of(tmp_path) == {f"<extra_id_{index}>": size + 99 - index for index in range(100)}
    ids = found.encode("a<extra_id_3>b", specials=True)
    assert size + 96 in ids and size + 96 not in found.encode("a<extra_id_3>b")


def test_how_many_tokens_for_hidden_spans_there_are_is_read(tmp_path: Path) -> None:
    write(model_file(tmp_path, "spiece.model"), tokenizer_config={"tokenizer_class": "T5Tokenizer", "extra_ids": 2})
    assert list(sentinels_of(tmp_path)) == ["<extra_id_1>", "<extra_id_0>"]
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer", "extra_ids": 0}')
    assert sentinels_of(tmp_path) == {}
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer", "extra_ids": "many"}')
    with pytest.raises(TokenizerError, match="extra_ids is 'many', and no number"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(("config", "prefix"), [
    ({}, "always"), ({"tokenizer_class": "T5Tokenizer"}, "always"), ({"tokenizer_class": "LlamaTokenizer"}, "first"),
    ({"tokenizer_class": "LlamaTokenizerFast", "legacy": True}, "always"),
    ({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False, "legacy": False}, "never")])
def test_the_class_says_where_a_sentencepiece_model_puts_its_space(config: dict[str, Any], prefix: str,
                                                                  tmp_path: Path) -> None:
    model_file(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_tokenizer(tmp_path).settings().get("prefix", "always") == prefix


def test_files_beside_a_sentencepiece_model_add_to_it(tmp_path: Path) -> None:
    added = {"381": {"content": "[x]", "special": False}, "380": {"content": "<pad>", "special": True}}
    write(
        model_file(tmp_path),
        tokenizer_config={"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": added, "eos_token": "<turn>"},
        added_tokens={"<pad>": 380},
        special_tokens_map={"pad_token": "<pad>"},
    )
    found = read_tokenizer(tmp_path)
    turn = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model")).piece_to_id("<turn>")
    assert (found.vocab_size, found.eos_id, found.conventions.adds_bos) == (382, turn, True)
    assert found.special_tokens["<pad>"] == 380 and found.special_tokens["<turn>"] == turn
    assert 381 in found.encode("a[x]<pad>") and 380 not in found.encode("a[x]<pad>")


def library(folder: Path, **files: Any) -> FileTokenizer:
    (folder / "tokenizer.json").write_bytes(BPE.files()["tokenizer.json"])
    found = read_tokenizer(write(folder, **files))
    assert isinstance(found, FileTokenizer)
    return found


def test_a_file_that_needs_nothing_is_kept_to_the_byte(tmp_path: Path) -> None:
    assert library(tmp_path, tokenizer_config={"eos_token": END}).files() == BPE.files()


def test_tokens_beside_the_file_are_added_with_their_ids(tmp_path: Path) -> None:
    found = library(
        tmp_path,
        added_tokens={"<pad>": 321, "[tool]": 320},
        tokenizer_config={"eos_token": {"content": END}, "bos_token": None, "pad_token": "<pad>"},
        config={"bos_token_id": 0, "eos_token_id": 5},
    )
    assert (found.vocab_size, found.bos_id, found.eos_id) == (322, None, BPE.eos_id)
    assert 320 in found.encode("a[tool]<pad>") and 321 not in found.encode("a[tool]<pad>")
    assert found.encode("<pad>", specials=True) == [321]
    with pytest.raises(TokenizerError, match=r"'<pad>' is declared with id 500, while the vocabulary has it as 320"):
        library(tmp_path, added_tokens={"<pad>": 500})


def test_roles_that_only_the_model_names_are_taken_from_it(tmp_path: Path) -> None:
    assert BPE.eos_id is not None
    found = library(tmp_path, config={"bos_token_id": BPE.eos_id, "eos_token_id": 7})
    assert (found.bos_id, found.eos_id) == (BPE.eos_id, 7)


def test_further_ends_stand_behind_the_tokenizers_own(tmp_path: Path) -> None:
    found = library(
        tmp_path,
        tokenizer_config={"eos_token": END},
        generation_config={"eos_token_id": [5, BPE.eos_id, 9000]},
        config={"eos_token_id": 6},
    )
    assert (found.eos_id, found.end_ids) == (BPE.eos_id, (BPE.eos_id, 5))


@pytest.mark.parametrize(("flag", "wanted"), [(None, True), (False, False), (True, True)])
def test_whether_the_opening_token_is_added_is_a_fact(flag: bool | None, wanted: bool, tmp_path: Path) -> None:
    source = tokenizers.Tokenizer.from_buffer(BPE.files()["tokenizer.json"])
    template = tokenizers.processors.TemplateProcessing(
        single=f"{END} $A", pair=f"{END} $A $B", special_tokens=[(END, BPE.eos_id)]
    )
    source.post_processor = template
    source.save(str(tmp_path / "tokenizer.json"))
    said = {} if flag is None else {"add_bos_token": flag}
    found = read_tokenizer(write(tmp_path, tokenizer_config={"bos_token": END, **said}))
    assert (found.conventions.adds_bos, found.conventions.adds_eos) == (wanted, False)
    assert found.encode("a") == BPE.encode("a")


def test_chat_templates_are_kept_by_name(tmp_path: Path) -> None:
    one = library(tmp_path, tokenizer_config={"chat_template": "{{ x }}"})
    assert one.conventions.chat_templates == {"default": "{{ x }}"}
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    assert library(tmp_path, tokenizer_config={"chat_template": named}).conventions.chat_templates == {
        "default": "a", "tool_use": "b",
    }  # fmt: skip
    (tmp_path / "chat_template.jinja").write_text("file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("more")
    found = library(tmp_path, tokenizer_config={"chat_template": "{{ x }}"})
    assert found.conventions.chat_templates == {"default": "file", "rag": "more"}
    found.save(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    assert loaded.conventions == found.conventions
    assert read_tokenizer(tmp_path / "saved").fingerprint() == found.fingerprint()


def test_a_folder_of_several_is_read_by_its_tokenizer_json(tmp_path: Path) -> None:
    pair(bert(tmp_path))
    assert library(tmp_path).files() == BPE.files()
    assert TokenizerFileConfig(path=str(tmp_path)).known_vocab_size() == 320


def test_a_folder_without_a_tokenizer_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("")
    with pytest.raises(TokenizerError, match=r"looked for .*tokenizer\.json.*vocab\.txt.*holds notes\.md\. Give"):
        read_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match=r"'notes\.md' is not a known tokenizer file: tokenizer"):
        read_tokenizer(tmp_path / "notes.md")
    with pytest.raises(TokenizerError, match=r"tokenizer\.model: the file cannot be read \(No such file.*whole"):
        read_sentence_piece(tmp_path)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("vocab.json", "{", r"vocab\.json: the vocabulary is damaged: not JSON: Expecting"),
    ("vocab.json", "[]", r"vocab\.json: the vocabulary is damaged: it is not an object of tokens and ids"),
    ("vocab.json", '{"a": 0}', r"vocab\.json: the files of the vocabulary are inconsistent \("),
    ("merges.txt", "#version\na b c\n", r"merges\.txt: the vocabulary is damaged: 'a b c' is not a pair of tokens"),
    ("merges.txt", "\udcff", r"merges\.txt: the vocabulary is damaged: 'utf-8' codec"),
    ("tokenizer_config.json", "[]", r"tokenizer_config\.json: the file cannot be read \(a list, not an object\)"),
    ("generation_config.json", "{", r"generation_config\.json: the file cannot be read \(not JSON: .* Copy"),
])  # fmt: skip
def test_damaged_files_are_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    (pair(tmp_path) / name).write_bytes(content.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(TokenizerError, match=message):
        read_tokenizer(tmp_path)


def test_missing_merges_and_a_missing_unknown_word_are_named(tmp_path: Path) -> None:
    (pair(tmp_path) / "merges.txt").unlink()
    with pytest.raises(TokenizerError, match=r"merges\.txt: the file cannot be read \(No such file"):
        read_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(TokenizerError, match=r"vocab\.txt: the vocabulary is damaged: it has no '\[UNK\]'"):
        read_tokenizer(tmp_path / "vocab.txt")


def test_a_tokenizer_larger_than_the_model_is_refused() -> None:
    require_fits(BPE, 320, where="model")
    require_fits(BPE, 384, where="model")
    with pytest.raises(TokenizerError, match=r"model: the tokenizer BPE-320 has 320 ids, while the model's .* has 319"):
        require_fits(BPE, 319, where="model")


BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s")


@pytest.mark.parametrize("declared", [{}, {"tokenizer_class": "BertTokenizer", "cls_token": "[CLS]",
                                           "sep_token": "[SEP]"}], ids=["bare", "declared"])
def test_bert_s_texts_stand_between_the_tokens_of_an_encoder(declared: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(BERT) + "\n")
    if declared:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(declared))
    found = read_tokenizer(tmp_path)
    assert found.encode("The cats") == [5, 6, 7]
    assert (found.bos_id, found.eos_id) == (2, 3)
    library = Path(tmp_path / "library")
    library.mkdir()
    for name, content in found.files().items():  # tokenizer.json, without a word on the roles
        (library / name).write_bytes(content)
    (library / "weft_tokenizer.json").unlink(missing_ok=True)
    if declared:
        (library / "tokenizer_config.json").write_text(json.dumps(declared))
    again = read_tokenizer(library)
    assert again.encode("The cats") == [5, 6, 7]
    assert (again.bos_id, again.eos_id) == ((2, 3) if declared else (None, None))
