"""Which tokens of a conversation are scored: on ten published templates token by token, and where no mask is exact."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest

from chat.published import PUBLISHED, SYSTEM, TALK, THINKING, tokenizer_of
from weft.chat.answers import AnswerMarker, Marked, spans
from weft.chat.template import ChatTemplate, Extras, chat_template
from weft.core.errors import InputError
from weft.tokenizers import BPETokenizer, ByteTokenizer, Tokenizer

DAY = Extras(now=datetime(2025, 1, 1))
ASK = {"role": "user", "content": "Hi"}
SAY = {"role": "assistant", "content": "Yes."}


def surfaces(tokenizer: Tokenizer, ids: list[int], text: str) -> list[str]:
    """What stands in the text for each token, by the names of the vocabulary; texts are ASCII but for specials."""
    names = {place: name for name, place in tokenizer.pieces.items()}
    specials = {place: name for name, place in tokenizer.special_tokens.items()}
    byte = re.compile(r"<0x([0-9A-F]{2})>")
    found = [specials[token] if token in specials else
             chr(int(byte.fullmatch(names[token])[1], 16)) if byte.fullmatch(names[token])  # type: ignore[index]
             else names[token].replace("▁", " ").replace("Ġ", " ").replace("Ċ", "\n") for token in ids]
    if "".join(found) == f" {text}":  # the mark of white space before a text's first word
        found[0] = found[0][1:]
    assert "".join(found) == text
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_scored_tokens_of_a_published_template_are_those_found_by_hand(name: str) -> None:
    published, tokenizer = PUBLISHED[name], tokenizer_of(name)
    template = chat_template(tokenizer)
    marker = AnswerMarker(template, extras=DAY)
    found = marker.mark(TALK)
    text = "".join(published.parts)
    assert template.text(TALK, extras=DAY) == text
    wanted = [place % 2 == 1 for place, part in enumerate(published.parts) for _ in part]
    first = 0
    for token, scored, surface in zip(found.ids.tolist(), found.scored.tolist(),
                                      surfaces(tokenizer, found.ids.tolist(), text), strict=True):
        assert wanted[first:first + len(surface)] == [scored] * len(surface), (first, surface, token)
        first += len(surface)
    ends = {token for _, last in spans(found.scored) for token in found.ids[last - 1:last].tolist()}
    assert {tokenizer.special_tokens[end] for end in marker.ends} == ends, "the token that stops is scored, as the last"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_conversation_is_the_tokens_that_its_template_writes(name: str) -> None:
    template = chat_template(tokenizer_of(name))
    talk = [{**message, "content": message["content"].strip()} for message in TALK]
    assert AnswerMarker(template, extras=DAY).mark(talk).ids.tolist() == template.encode(talk, extras=DAY)


@pytest.mark.parametrize("name", ["Qwen2.5", "Llama-3.1", "DeepSeek"])
def test_an_answer_is_what_a_model_continues_its_prompt_with(name: str) -> None:
    """The tokens before an answer are those that the model is given in use."""
    template = chat_template(tokenizer_of(name))
    talk = [{**message, "content": message["content"].strip()} for message in TALK]
    found = AnswerMarker(template, extras=DAY).mark(talk)
    for (first, _), place in zip(spans(found.scored), (1, 3), strict=True):
        prompt = template.encode(talk[:place], add_generation_prompt=True, extras=DAY)
        assert found.ids[:first].tolist() == prompt


def mark(source: str, messages: Any, which: Any = "all", tokenizer: Tokenizer | None = None, **extras: Any) -> Marked:
    template = ChatTemplate(tokenizer or tokenizer_of("Qwen2.5"), source)
    return AnswerMarker(template, which, Extras(**extras)).mark(messages)


def scored_text(found: Marked, tokenizer: Tokenizer | None = None) -> list[str]:
    decode = (tokenizer or tokenizer_of("Qwen2.5")).decode
    return [decode(found.ids[first:last], specials=True) for first, last in spans(found.scored)]


def test_a_system_message_takes_the_place_of_the_default_one() -> None:
    source = PUBLISHED["Qwen2.5"].source
    found = mark(source, [SYSTEM, ASK, SAY])
    text = tokenizer_of("Qwen2.5").decode(found.ids, specials=True)
    assert "Be brief." in text and "Qwen" not in text and scored_text(found) == ["Yes.<|im_end|>"]


def test_a_message_that_spells_the_end_of_an_answer_does_not_end_it() -> None:
    found = mark(PUBLISHED["Qwen2.5"].source, [ASK, {"role": "assistant", "content": "It is <|im_end|>\nhere."}])
    assert scored_text(found) == ["It is <|im_end|>\nhere.<|im_end|>"]
    end = tokenizer_of("Qwen2.5").special_tokens["<|im_end|>"]
    assert [found.ids[found.scored].tolist().count(end)] == [1]


def test_a_token_across_the_border_is_divided_as_in_use() -> None:
    """A line end closes the prompt and another opens the answer: the vocabulary has both in one token."""
    tokenizer = tokenizer_of("Qwen2.5")
    assert len(tokenizer.encode("\n\n")) == 1
    template = ChatTemplate(tokenizer, PUBLISHED["Qwen2.5"].source)
    talk = [ASK, {"role": "assistant", "content": "\n Yes."}]
    found = AnswerMarker(template).mark(talk)
    assert found.ids.tolist() != template.encode(talk)
    prompt = template.encode([ASK], add_generation_prompt=True)
    assert found.ids[:len(prompt)].tolist() == prompt and scored_text(found) == ["\n Yes.<|im_end|>"]


def test_what_a_template_declares_is_scored_to_the_end_of_the_answer() -> None:
    source = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
              "{% generation %}{{ m.content.split('</think>')[-1] }}INSIDE{% endgeneration %}OUTSIDE"
              "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}")
    talk = [ASK, {"role": "assistant", "content": "hm</think>Yes."}, ASK, SAY]
    inside = source.replace("INSIDE", "{{ '<|im_end|>\n' }}").replace("OUTSIDE", "")
    behind = source.replace("INSIDE", "").replace("OUTSIDE", "{{ '<|im_end|>' }}")
    for each in (inside, behind):
        assert scored_text(mark(each, talk)) == ["Yes.<|im_end|>"] * 2
        assert scored_text(mark(each, talk, "last")) == ["Yes.<|im_end|>"]
    with pytest.raises(InputError, match="writes no token that ends an answer"):
        mark(source.replace("INSIDE", "").replace("OUTSIDE", ""), talk)


def test_a_template_that_drops_thoughts_is_refused_unless_the_last_answer_is_scored_alone() -> None:
    talk = [ASK, {"role": "assistant", "content": "hm</think>Yes."}, ASK,
            {"role": "assistant", "content": "so</think>No."}]
    with pytest.raises(InputError, match=r"the template writes answer 2 otherwise once messages follow it\. .*"
                                         r"scored: last"):
        mark(THINKING, talk)
    assert scored_text(mark(THINKING, talk, "last")) == ["so</think>No.<|im_end|>"]


@pytest.mark.parametrize(("source", "message"), [
    (PUBLISHED["Qwen2.5"].source.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>'"),
     "writes the messages before answer 2 otherwise when it asks for the answer"),
    ("{% for m in messages %}{{ m.role + eos_token }}{% endfor %}", "writes no text of the assistant"),
    ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
     "writes no text of the assistant, so there is nothing to learn"),
    ("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}",
     "writes no token that ends an answer, so a model would not learn to stop"),
    ("{% generation %}{% endgeneration %}{{ eos_token }}", "writes no text of the assistant"),
], ids=["prompt", "roles", "users", "endless", "nothing declared"])
def test_what_has_no_exact_mask_is_refused_by_name(source: str, message: str) -> None:
    with pytest.raises(InputError, match=f"chat template 'default': the template {message}"):
        mark(source, [ASK, SAY])


def test_a_template_that_writes_some_answers_is_refused() -> None:
    source = ("{% for m in messages[-2:] %}{{ m.content + eos_token }}{% endfor %}")
    with pytest.raises(InputError, match=r"writes 1 of 2 answers\. Score the last answer alone"):
        mark(source, [ASK, SAY, ASK, SAY])


def test_calls_of_functions_are_scored_to_the_end_of_the_turn() -> None:
    source = ("{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
              "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}"
              "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
              "{% endif %}")
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}
    talk = [ASK, call, {"role": "tool", "content": "3"}, SAY]
    template = ChatTemplate(tokenizer_of("Qwen2.5"), source)
    found = AnswerMarker(template).mark(talk, [{"name": "f"}])
    assert scored_text(found) == ['[{"name": "f"}]<|im_end|>', "Yes.<|im_end|>"]
    assert tokenizer_of("Qwen2.5").decode(found.ids[:3]).startswith("[")


def test_styles_end_answers_with_texts_where_there_is_no_token() -> None:
    tokenizer = ByteTokenizer()
    marker = AnswerMarker(chat_template(tokenizer, "chatml"))
    found = marker.mark([ASK, {"role": "assistant", "content": "a <|im_end|> b"}, ASK, SAY])
    assert scored_text(found, tokenizer) == ["a <|im_end|> b<|im_end|>", "Yes.<|im_end|>"]
    assert marker.ends == {"<|im_end|>"}
    found = AnswerMarker(chat_template(tokenizer, "llama2")).mark([ASK, SAY])
    assert scored_text(found, tokenizer) == [" Yes. <|endoftext|>"]
    with pytest.raises(InputError, match="writes no token that ends an answer"):
        AnswerMarker(chat_template(tokenizer, "plain")).mark([ASK, SAY])


def test_a_learned_vocabulary_marks_whole_tokens() -> None:
    tokenizer = BPETokenizer.train(["Yes. Yes. Hi Hi [INST] [/INST] "] * 4, 265)
    found = AnswerMarker(chat_template(tokenizer, "llama2")).mark([ASK, SAY, ASK, SAY])
    assert scored_text(found, tokenizer) == [" Yes. <|endoftext|>"] * 2
