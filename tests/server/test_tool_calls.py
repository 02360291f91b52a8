"""Calls that are required, named, single or strict: every answer that ends parses, and its arguments validate."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import torch

from decoding.small_models import Bigram, reseeded
from server.test_bodies import chat
from weft.checkpoints import Loaded
from weft.core.errors import InputError
from weft.server.replies import require_answer
from weft.server.served import Served
from weft.serving.engine import Engine
from weft.serving.requests import EngineLimits, Event
from weft.tokenizers import ByteTokenizer, Conventions
from weft.tokenizers.base import extended

SPECIALS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<think>", "</think>")
LIMITS = EngineLimits(context=2000, rows=32)
CONTENT = "{{ m.content or '' }}"
OPENS = ("{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
         "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}")
CLOSES = ("{{ '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\nBEGINS' }}{% endif %}")
CALL = "{'name': call.function.name, 'KEY': call.function.arguments}"
TEMPLATES = {
    "marks around each call": "{% for call in m.tool_calls or [] %}{{ ('' if loop.first else '\n') + "
                              "'<tool_call>\n' + (" + CALL.replace("KEY", "arguments")
                              + " | tojson) + '\n</tool_call>' }}{% endfor %}",
    "a list with ids": "{% if m.tool_calls %}{{ '[TOOL_CALLS] [' }}{% for call in m.tool_calls %}{{ {'name': "
                       "call.function.name, 'arguments': call.function.arguments, 'id': call.id} | tojson }}"
                       "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' }}{% endif %}",
    "no mark at the end": "{% if m.tool_calls %}{{ 'CALL: ' }}{% for call in m.tool_calls %}{{ "
                          + CALL.replace("KEY", "parameters") + " | tojson }}"
                          "{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}{% endif %}"}
THINKS = "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "additionalProperties": False, "required": ["city", "days"],
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "$defs": {"city": {"type": "string", "maxLength": 12}}}}}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
SCHEMAS = {"weather": WEATHER["function"]["parameters"],  # type: ignore[index]
           "now": {"type": "object", "maxProperties": 0}}


@cache
def serving(kind: str, *, specials: bool, thinks: bool = False) -> Served:
    """A random model over bytes, fond of what ends texts and strings, with a template that writes calls."""
    tokenizer = extended(ByteTokenizer(), SPECIALS if specials else SPECIALS[:2])
    closes = CLOSES.replace("BEGINS", "<think>\\n" if thinks else "")
    source = OPENS + (THINKS if thinks else "") + CONTENT + TEMPLATES[kind] + closes
    tokenizer = tokenizer.with_conventions(Conventions(chat_templates={"default": source}))
    size = tokenizer.vocab_size
    shares = torch.rand(size, size, generator=reseeded(3)) + 0.05
    shares[:, [*b'"]}<,', 256, *range(257, size)]] *= 60
    shares[:, ord("\n")] *= 30
    model = Bigram(shares.tolist()).eval()
    return Served("tiny", Loaded(model, tokenizer, model.config, None, {}, Path("tiny")), LIMITS)


def answers(served: Served, **body: Any) -> list[dict[str, Any]]:
    """The choices that the model makes."""
    asked = chat(served, ("user", "Hi"), max_tokens=200, seed=4, tools=[WEATHER, NOW], **body)
    engine = Engine(served.require_language_model(), served.tokenizer, limits=LIMITS)

    def tell(place: int) -> Any:
        def take(event: Event) -> None:
            asked.answer.tell(place, require_answer(event))
        return take

    for place, request in enumerate(asked.requests):
        engine.submit(request, tell(place))
    while engine.step():
        pass
    assert asked.answer.done
    choices: list[dict[str, Any]] = asked.answer.whole()["choices"]
    return choices


def calls_of(choice: dict[str, Any]) -> list[str]:
    """The names of the functions that an answer calls with sound arguments."""
    found = []
    for call in choice["message"].get("tool_calls", ()):
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        jsonschema_rs.validator_for(SCHEMAS[name]).validate(arguments)
        found.append(name)
    return found


def takes(form: Any, served: Served, text: str) -> bool:
    """Whether a form takes a text, token by token."""
    for token in served.tokenizer.encode(text, specials=True):
        if not form.allowed()[token]:
            return False
        form.push(token)
    return True


@pytest.mark.parametrize("specials", [False, True])
@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_required_answer_is_calls_and_nothing_else(kind: str, specials: bool) -> None:
    made = [choice for choice in answers(serving(kind, specials=specials), tool_choice="required", n=8)
            if choice["finish_reason"] != "length"]
    assert made, "random tokens end most of them"
    assert all(calls_of(choice) and choice["message"]["content"] is None for choice in made)
    assert {choice["finish_reason"] for choice in made} == {"tool_calls"}
    served = serving(kind, specials=specials)
    asked = chat(served, ("user", "Hi"), tools=[WEATHER, NOW], tool_choice="required")
    calls, make = served.dialects[True].calls, asked.requests[0].settings.constraint
    assert calls is not None and calls.between is not None and make is not None
    call = "".join({"qznameqz": "now", "arguments": "{}", "qzcallqz1": "abcdefgh1"}.get(each, each)
                   for each in calls.pieces)
    assert takes(make(), served, calls.before + call + calls.between + call + calls.after)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_one_call_of_one_function(kind: str) -> None:
    served, named = serving(kind, specials=True), {"type": "function", "function": {"name": "now"}}
    for choice in answers(served, tool_choice=named, n=4):
        assert calls_of(choice) == ["now"]
    for choice in answers(served, tool_choice="required", parallel_tool_calls=False, n=4):
        assert choice["finish_reason"] == "length" or len(calls_of(choice)) == 1


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", TEMPLATES)
def test_calls_that_a_model_chooses_to_make_are_strict(kind: str, several: bool) -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    served = serving(kind, specials=True)
    asked = chat(served, ("user", "Hi"), tools=[strict, NOW], parallel_tool_calls=several)
    assert asked.requests[0].settings.constraint is not None
    form = asked.requests[0].settings.constraint()
    calls = served.dialects[True].calls
    assert calls is not None
    assert takes(form, served, "I look. " + calls.before + calls.pieces[0])
    assert not form.allowed()[ord("x")] and form.allowed()[ord("w")] and form.allowed()[ord("n")]
    assert takes(form, served, "weather" + calls.pieces[2] + '{"city": "a", "days": ')
    assert not form.allowed()[ord("0")] and form.allowed()[ord("9")]


def test_one_call_at_most_leaves_text_free() -> None:
    found = answers(serving("marks around each call", specials=True), parallel_tool_calls=False, n=8)
    assert all(len(calls_of(choice)) <= 1 for choice in found if choice["finish_reason"] != "length")
    assert any(choice["message"]["content"] for choice in found)


def test_a_thought_that_the_prompt_has_begun_is_ended_before_the_form() -> None:
    served = serving("marks around each call", specials=True, thinks=True)
    for choice in answers(served, tool_choice="required", n=6):
        if choice["finish_reason"] != "length":
            assert calls_of(choice)
            assert choice["message"]["content"] is None
    asked = chat(served, ("user", "Hi"), response_format={"type": "json_object"})
    form = asked.requests[0].settings.constraint
    assert form is not None
    state, names = form(), served.tokenizer.special_tokens
    for token in (*b"hm", names["</think>"], *b'\n\n{"a": "', names["</think>"], *b'"'):
        assert state.allowed()[token]
        state.push(token)
    assert not state.allowed()[ord("x")]
    assert state.push(ord("}"))


def test_marks_inside_the_strings_of_a_call_do_not_end_it() -> None:
    from server.test_dialects import dialect
    from weft.server.dialect import Parting

    parting = Parting(dialect(tools=True), thinks=False, calls=True)
    told = '<tool_call>\n{"name": "f", "arguments": {"a": "\\"</tool_call>"}}\n</tool_call>'
    found = [piece for place, letter in enumerate(told) for piece in parting.push(letter, last=place == len(told) - 1)]
    assert found == [("call", '{"name": "f", "arguments": {"a": "\\"</tool_call>"}}')]


@pytest.mark.parametrize(("body", "where", "says"), [
    ({"tool_choice": {"type": "function", "function": {"name": "then"}}}, "tool_choice.function", "no name of one"),
    ({"tool_choice": {**NOW, "function": {"name": "now", "strict": True}}}, "tool_choice.function", "alone"),
    ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {
        "type": "nonsense"}}}]}, "tools", "does not compile"),
])
def test_choices_that_cannot_be_held_are_named(body: dict[str, Any], where: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        chat(serving("a list with ids", specials=True), ("user", "Hi"), **{"tools": [WEATHER, NOW], **body})
    assert caught.value.where == where and says in str(caught.value)


def test_a_template_whose_calls_are_not_known_holds_none() -> None:
    from server.fake_engine import served

    source = OPENS + CONTENT + "{% for call in m.tool_calls or [] %}{{ call.function.name }}{% endfor %}" + CLOSES
    tiny = served(template=source.replace("BEGINS", ""), limits=LIMITS)
    with pytest.raises(InputError, match="not known") as caught:
        chat(tiny, ("user", "Hi"), tools=[NOW], tool_choice="required")
    assert caught.value.where == "tool_choice"
    with pytest.raises(InputError, match="not known") as caught:
        chat(tiny, ("user", "Hi"), tools=[{**NOW, "function": {"name": "now", "strict": True}}])
    assert caught.value.where == "tools"
    assert chat(tiny, ("user", "Hi"), tools=[NOW], parallel_tool_calls=False).requests[0].settings.constraint is None
