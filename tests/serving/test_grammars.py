"""Answers of a given form: every finished one is of it, and what cannot be compiled is refused."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

import jsonschema_rs
import pytest
import torch

from decoding.small_models import Bigram, reseeded
from serving.schemas import schema
from weft.core.errors import FailedError, InputError
from weft.data import embedded_corpus
from weft.decoding import GREEDY, Ending, NewToken, RowSettings, Sampling, Slots
from weft.serving.grammars import Grammars
from weft.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)

BYTES = ByteTokenizer()
DRAWN = Sampling()
IDS = 264
"""Of the model, for the 257 of the bytes."""


def model(size: int = IDS) -> Bigram:
    """A random model that is fond of what ends strings, lists, objects and texts, so that answers are short."""
    shares = torch.rand(size, size, generator=reseeded(5)) + 0.05
    if size == IDS:
        shares[:, [*b'"]}', 256]] *= 60
        shares[:, list(b" \t\r\n")] /= 20
    return Bigram(shares.tolist()).eval()


def answers(constraints: list[Any], tokenizer: Tokenizer = BYTES, size: int = IDS, most: int = 250,
            sampling: Sampling = DRAWN) -> list[tuple[str, str | None, list[NewToken]]]:
    """The text and the finish of a row for each constraint, twenty rows at a time."""
    slots = Slots(model(size), 20, capacity=most + 2, tokenizer=tokenizer)
    waiting, found = list(range(len(constraints))), dict[int, list[NewToken]]()
    while waiting or slots.live:
        while waiting and slots.free:
            row = waiting.pop(0)
            slots.admit([1], RowSettings(most, sampling, Ending(tokens=tokenizer.end_ids), row=row, seed=7,
                                         constraint=constraints[row]))
        for new in slots.step():
            found.setdefault(new.row, []).append(new)
    return [("".join(new.text or "" for new in found[row]), found[row][-1].finish, found[row])
            for row in range(len(constraints))]


def finite(text: str) -> float:
    """A number such as 1e400 is one of JSON, and no float of Python."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def test_every_finished_answer_to_300_schemas_is_valid() -> None:
    draw, grammars = Random(11), Grammars(BYTES, IDS)
    schemas = [schema(draw) for _ in range(300)]
    found = answers([grammars.json_schema(each) for each in schemas])
    finished = 0
    for given, (text, finish, _) in zip(schemas, found, strict=True):
        if finish != "length":
            finished += 1
            assert not [each.message for each in jsonschema_rs.validator_for(
                given, validate_formats=True).iter_errors(json.loads(text, parse_float=finite))], (given, text)
    assert finished > 270, "random tokens end nearly all of them"


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=5.0), Sampling(top_k=1), Sampling(top_p=0.01),
                                      Sampling(min_p=1.0), Sampling(bias=((ord("x"), 100.0), (256, 100.0))),
                                      Sampling(repetition_penalty=5.0, presence_penalty=9.0)], ids=str)
def test_the_mask_comes_before_every_setting(sampling: Sampling) -> None:
    """Else the most probable of all tokens, to which these settings narrow the choice, would be a forbidden one."""
    text, finish, _ = answers([Grammars(BYTES, IDS).regex("[ab]{4}(c|dd)")], sampling=sampling)[0]
    assert finish == "complete" and re.fullmatch("[ab]{4}(c|dd)", text)


def test_an_answer_that_may_go_on_ends_where_the_model_ends_it() -> None:
    text, finish, told = answers([Grammars(BYTES, IDS).regex("[0-9]+")], sampling=Sampling(bias=((256, 5.0),)))[0]
    assert finish == "stop_token" and text.isdigit() and told[-1].token == 256


def test_an_object_is_any_object_and_a_lark_grammar_a_language() -> None:
    grammars = Grammars(BYTES, IDS)
    lark = 'start: "(" start ")" | "x"'
    found = answers([grammars.json_schema({"type": "object"}), grammars.lark(lark)] * 10, most=400)
    assert {type(json.loads(text)) for text, finish, _ in found[::2] if finish == "complete"} == {dict}
    for text, finish, _ in found[1::2]:
        depth = text.count("(")
        assert finish == "complete" and text == "(" * depth + "x" + ")" * depth


TEXTS = list(embedded_corpus(max_bytes=40_000).texts())


@pytest.mark.parametrize("tokenizer", [
    BPETokenizer.train(TEXTS, 500), UnigramTokenizer.train(TEXTS, 400), CharacterTokenizer.train(TEXTS)],
    ids=["bpe", "unigram", "characters"])
def test_tokenizers_whose_ids_stand_for_fixed_text(tokenizer: Tokenizer) -> None:
    """The text as the tokenizer spells it matches, with tokens of several characters among those that were chosen."""
    pattern = r"def [a-z_]{3,20}\(self\):|import [a-z]{2,8}"
    found = answers([Grammars(tokenizer, tokenizer.vocab_size + 3).regex(pattern)] * 30, tokenizer,
                    tokenizer.vocab_size + 3)
    assert all(finish != "length" and re.fullmatch(pattern, text) for text, finish, _ in found)
    if not isinstance(tokenizer, CharacterTokenizer):
        assert min(len(told) for _, _, told in found) < min(len(text) for text, _, _ in found)


@pytest.mark.parametrize(("tokenizer", "pattern"), [
    (WordTokenizer.train(["the cat sat on the mat"]), "( the| cat| mat){3}"),
    (CharacterTokenizer.train(["éèêa"]), "(é|è|ê)(é|è)a")], ids=["words", "characters"])
def test_what_every_answer_shares_need_not_be_a_token(tokenizer: Tokenizer, pattern: str) -> None:
    """All begin with a space, or with the first byte of a character, and neither is one."""
    found = answers([Grammars(tokenizer, tokenizer.vocab_size).regex(pattern)] * 3, tokenizer, tokenizer.vocab_size)
    assert all(finish == "complete" and re.fullmatch(pattern, text) for text, finish, _ in found)


def test_tokenizers_whose_ids_depend_on_their_neighbours_are_refused() -> None:
    tokenizer = WordPieceTokenizer.train(TEXTS, 300)
    with pytest.raises(InputError, match=r"tokenizer: what ids of the tokenizer WordPiece-300 stand for depends on "
                                         r"their neighbours, such as \d+ and \d+, .* byte-level, BPE or SentencePiece"):
        Grammars(tokenizer, 300).regex("a")


DEEP: Any = {"type": "integer"}
for _ in range(400):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
UNENDING: dict[str, Any] = {}
UNENDING["items"] = UNENDING
REFUSED: list[tuple[Callable[[Grammars], Any], str]] = [
    (lambda each: each.json_schema({"$ref": "https://example.com/x"}), r"example\.com/x.* does not fetch"),
    (lambda each: each.json_schema({"$ref": "#/$defs/none"}), r"it does not compile: Pointer '/\$defs/none' does not"),
    (lambda each: each.json_schema({"$ref": "#"}), "json_schema: no token of the model's vocabulary can begin it"),
    (lambda each: each.json_schema({"type": "foo"}), "json_schema: it does not compile: Invalid type: foo"),
    (lambda each: each.json_schema({"type": "string", "format": "nope"}), "Unknown format: nope"),
    (lambda each: each.json_schema({"type": "array", "uniqueItems": True}), r'Unimplemented keys: \["uniqueItems"\]'),
    (lambda each: each.json_schema({"not": {}, "x-guidance": {"lenient": True}}), r'Unimplemented keys: \["not"\]'),
    (lambda each: each.json_schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum .5. is greater"),
    (lambda each: each.json_schema(json.loads("[1]")), "does not compile: .*Give an object as a JSON schema"),
    (lambda each: each.json_schema({"const": b"x"}), "the schema is no JSON .*not JSON serializable"),
    (lambda each: each.json_schema({"minimum": float("nan")}), "json_schema: the schema is no JSON"),
    (lambda each: each.json_schema(UNENDING), "json_schema: the schema is nested too deeply, or contains itself"),
    (lambda each: each.json_schema(DEEP), "json_schema: .*(recursion limit exceeded|nested too deeply)"),
    (lambda each: each.json_schema({"enum": [f"value {place}" for place in range(100_000)]}),
     r"json_schema: [\d,]+ bytes, and at most 65,536 are compiled"),
    (lambda each: each.json_schema({"allOf": [{"anyOf": [{"type": "object", "properties": {f"a{one}{two}": {
        "type": "string"}}} for one in range(20)]} for two in range(8)]}), "schema too large"),
    (lambda each: each.regex("[a-c"), "regex: it does not compile: .*unclosed character class"),
    (lambda each: each.regex("(?=a)b"), "look-around, including look-ahead and look-behind, is not supported"),
    (lambda each: each.regex("ж" * 40_000), "regex: 80,000 bytes, and at most 65,536 are compiled. Give a shorter one"),
    (lambda each: each.lark("start: foo"), 'lark: it does not compile: .*unknown name: "foo"'),
    (lambda each: each.lark('begin: "a"'), "lark: it does not compile: no start rule found")]


@pytest.mark.parametrize(("compile_it", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_does_not_compile_is_refused_in_one_line(compile_it: Callable[[Grammars], Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        compile_it(Grammars(BYTES, IDS))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 600


def test_a_form_that_the_vocabulary_cannot_write_is_refused_or_fails_alone() -> None:
    tokenizer = CharacterTokenizer.train(["abc"])
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    with pytest.raises(InputError, match="json_schema: no token of the model's vocabulary can begin it"):
        grammars.json_schema({"type": "object"})
    failed = dict[int, FailedError]()
    slots = Slots(model(tokenizer.vocab_size), 2, capacity=9, tokenizer=tokenizer)
    slots.admit_all([[1], [1]], [RowSettings(5, row=row, constraint=constraint) for row, constraint in enumerate(
        (grammars.regex("axb"), grammars.regex("a[abc]{3}c")))])
    found = [new for _ in range(6) for new in slots.step(failed)]
    assert list(failed) == [0] and "the constraint failed" in str(failed[0])
    assert re.fullmatch("a[abc]{3}c", "".join(new.text or "" for new in found if new.row == 1))


@pytest.mark.parametrize("pattern", ["(.*a.{30}|.*b.{31}|.*e.{29})+", "((.*a.{1000}){1000}){1000}",
                                     "((a{1,999}){1,999})+"])
def test_hostile_expressions_end_in_bounded_time_and_memory(pattern: str) -> None:
    """300 tokens, or an error of the row: a step takes at most the fuel it is given. Half a minute is no test of speed
    but tells what ends from what does not."""
    begun = time.monotonic()
    failed = dict[int, FailedError]()
    slots = Slots(model(), 1, capacity=302, tokenizer=BYTES)
    slots.admit([1], RowSettings(300, constraint=Grammars(BYTES, IDS).regex(pattern)))
    while slots.live:
        slots.step(failed)
    assert time.monotonic() - begun < 30
    assert not failed or re.search("TooComplex|too (big|complex|many)|limit", str(failed[0])), failed


def test_rows_of_one_form_do_not_share_their_state() -> None:
    constraint = Grammars(BYTES, IDS).regex("ab")
    one, other = constraint(), constraint()
    assert not one.push(ord("a")) and one.push(ord("b"))
    assert other.allowed().nonzero().flatten().tolist() == [ord("a")]
    with pytest.raises(FailedError):
        other.push(ord("b"))
