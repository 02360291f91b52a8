"""Files of the ``tokenizers`` library in every shape that published models use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from weft.core.errors import TokenizerError
from weft.tokenizers import FileTokenizer, read_tokenizer_json
from weft.tokenizers.library_pieces import byte_alphabet
from weft.tokenizers.streaming import byte_spans

TEXTS = ["the cat sat on the mat. " * 30, "Straße café naïve 世界 😀 " * 10]
ALPHABET = pre_tokenizers.ByteLevel.alphabet()


def byte_level(*, prefix: bool = False, normalizer: normalizers.Normalizer | None = None) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    library.decoder = decoders.ByteLevel()
    if normalizer is not None:
        library.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=ALPHABET, special_tokens=["</s>"], show_progress=False
    )
    library.train_from_iterator(TEXTS, trainer)
    return library


def metaspace() -> tokenizers.Tokenizer:
    """As Llama's: a leading space, and bytes for what the vocabulary lacks."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)] + [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    pieces += [("▁the", -3.0), ("▁cat", -4.0), ("▁", -5.0)] + [
        (letter, -8.0) for letter in "abcdefghijklmnopqrstuvwxyz."
    ]
    library = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return library


def word_piece() -> tokenizers.Tokenizer:
    """As BERT's: lower case, accents stripped, white space dropped."""
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    library.train_from_iterator(TEXTS, trainer)
    return library


FOREIGN = {
    "leading space": FileTokenizer(byte_level(prefix=True).to_str()),
    "normalised": FileTokenizer(byte_level(normalizer=normalizers.NFKC()).to_str()),
    "metaspace": FileTokenizer(metaspace().to_str()),
    "word piece": FileTokenizer(word_piece().to_str()),
}
BY_NAME = pytest.mark.parametrize("tokenizer", FOREIGN.values(), ids=FOREIGN.keys())


@settings(max_examples=80, deadline=None)
@given(st.text(st.sampled_from("the cat. ßé世😀ﬁ"), max_size=30))
def test_every_byte_of_the_source_is_counted_once(text: str) -> None:
    for name, tokenizer in FOREIGN.items():
        measured = tokenizer.measure(text)
        assert measured.ids.tolist() == tokenizer.encode(text)
        assert (measured.byte_lengths >= 0).all()
        expected = len(text.encode()) if len(measured.ids) else 0
        assert measured.byte_lengths.sum() == expected, name


def test_bytes_fall_on_the_tokens_that_cover_them() -> None:
    measured = FOREIGN["metaspace"].measure("the cat é")
    assert measured.byte_lengths.tolist() == [3, 4, 1, 1, 1]
    assert FOREIGN["word piece"].measure(" The  cat. ").byte_lengths.tolist() == [4, 5, 2]


def test_spans_give_gaps_to_the_next_token_and_shared_characters_to_the_first() -> None:
    assert byte_spans(" é 😀  ", [2, 4, 4]).tolist() == [3, 5, 2]
    assert byte_spans("abcd", [3, 2, 4]).tolist() == [3, 0, 1]
    assert byte_spans("", []).tolist() == []


@BY_NAME
def test_ids_alone_do_not_tell_the_bytes(tokenizer: FileTokenizer) -> None:
    with pytest.raises(TokenizerError, match=r"ids: the ids of this .* normalises the text .* measure\(text\)"):
        tokenizer.byte_lengths([0])


@BY_NAME
def test_streams_join_to_the_decoding(tokenizer: FileTokenizer) -> None:
    ids = tokenizer.encode("the cat. the 世😀 é cat")
    stream = tokenizer.stream()
    assert "".join(stream.push(token) for token in ids) + stream.finish() == tokenizer.decode(ids)


def test_a_stream_over_byte_fallback_waits_for_the_whole_character() -> None:
    tokenizer = FOREIGN["metaspace"]
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in tokenizer.encode("cat 世")]
    assert pieces == ["cat", " ", "", "", "世"]
    stream.push(tokenizer.encode("世")[1])
    assert set(stream.finish()) == {"\ufffd"}


def test_the_byte_alphabet_is_the_librarys() -> None:
    assert set(byte_alphabet()) == set(ALPHABET)
    assert sorted(byte_alphabet().values()) == list(range(256))


def test_truncation_padding_and_special_tokens_of_a_file_do_not_touch_text() -> None:
    library = byte_level()
    plain = library.encode("the cat sat </s> on").ids
    library.post_processor = processors.TemplateProcessing(single="</s> $A </s>", special_tokens=[("</s>", 0)])
    library.enable_truncation(3)
    library.enable_padding(length=12)
    tokenizer = FileTokenizer(library.to_str(), eos="</s>")
    assert tokenizer.eos_id == 0 and 0 in plain
    assert 0 not in tokenizer.encode("the cat sat </s> on")
    assert tokenizer.decode(tokenizer.encode("the cat sat </s> on")) == "the cat sat </s> on"
    assert tokenizer.measure("the cat").ids.tolist() == plain[: len(tokenizer.encode("the cat"))]


def test_added_tokens_that_are_not_special_are_text() -> None:
    library = byte_level()
    library.add_tokens(["    "])
    tokenizer = FileTokenizer(library.to_str())
    ids = tokenizer.encode("a    b")
    assert library.token_to_id("    ") in ids
    assert tokenizer.decode(ids) == "a    b"
    assert tokenizer.byte_lengths(ids).tolist() == [1, 4, 1]


def test_begin_and_end_come_from_the_settings_beside_the_file(tmp_path: Path) -> None:
    library = byte_level()
    library.add_special_tokens(["<s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    assert read_tokenizer_json(tmp_path).eos_id is None
    beside = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(beside))
    found = read_tokenizer_json(tmp_path / "tokenizer.json")
    assert (found.bos_id, found.eos_id) == (library.token_to_id("<s>"), 0)
    assert read_tokenizer_json(tmp_path, bos="</s>").bos_id == 0


def test_vocab_size_covers_the_largest_id_where_ids_have_gaps() -> None:
    declared = json.loads(byte_level().to_str())
    vocabulary = declared["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.__getitem__)
    vocabulary[last] = 1000
    tokenizer = FileTokenizer(json.dumps(declared))
    assert tokenizer.vocab_size == 1001
    assert tokenizer.decode([999]) == ""
