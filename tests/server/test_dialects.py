"""Thoughts and calls are parted from an answer's text where the model's template writes them between marks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.fake_engine import served
from server.test_bodies import LIMITS, chat, play
from weft.server.dialect import Dialect, Marks, Parting, read_calls
from weft.serving.requests import EngineLimits

TOOLS = """{%- if tools %}{{ '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}"""
CALLS = """{%- for call in m.tool_calls or [] %}{{ '<tool_call>\\n' + ({'name': call.function.name,
'arguments': call.function.arguments} | tojson) + '\\n</tool_call>' }}{% endfor %}"""
FRAME = ("TOOLS{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}THOUGHT"
         "{% endif %}{{ m.content or '' }}CALLS{{ '<|im_end|>\\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\nOPENS' }}{% endif %}")
KEEPS = "{% if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}"


def template(*, tools: bool = False, thoughts: bool = False, opens: bool = False) -> str:
    return (FRAME.replace("TOOLS", TOOLS if tools else "").replace("CALLS", CALLS if tools else "")
            .replace("THOUGHT", KEEPS if thoughts else "").replace("OPENS", "<think>\\n" if opens else ""))


def dialect(**given: bool) -> Dialect:
    return served(template=template(**given), limits=LIMITS).dialects[True]


def test_marks_are_found_by_rendering_what_is_known() -> None:
    plain, both = dialect(), dialect(tools=True, thoughts=True)
    assert (plain.thought, plain.call, plain.takes_tools) == (None, None, False)
    assert both.thought == Marks("<think>", "</think>")
    assert both.call == Marks("<tool_call>", "</tool_call>")
    assert both.takes_tools


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("text", "pieces"), [
    ("Just text.\n", [("text", "Just text.\n")]),
    ("<think>\nhm, a < b\n</think>\n\nYes.", [("thought", "hm, a < b"), ("text", "Yes.")]),
    ("A.\n<tool_call>\n{\"a\": 1}\n</tool_call>", [("text", "A."), ("call", '{"a": 1}')]),
    ("<think>never ends", [("thought", "never ends")]),
    ("a <thin air", [("text", "a <thin air")]),
    ("<tool_call>{1}</tool_call>\n<tool_call>{2}</tool_call>", [("call", "{1}"), ("call", "{2}")]),
])
def test_answers_are_parted_whatever_the_pieces_in_which_they_come(text: str, pieces: list[tuple[str, str]],
                                                                   size: int) -> None:
    parting, found = Parting(dialect(tools=True, thoughts=True), thinks=False, calls=True), list[tuple[str, str]]()
    for first in range(0, len(text), size):
        for kind, piece in parting.push(text[first:first + size], last=first + size >= len(text)):
            if found and found[-1][0] == kind != "call":
                found[-1] = kind, found[-1][1] + piece
            else:
                found.append((kind, piece))
    assert found == pieces


def test_thoughts_are_told_apart_from_the_answer() -> None:
    tiny = served(template=template(thoughts=True), limits=EngineLimits(context=200))
    asked = chat(tiny, ("user", "Hi"), max_tokens=60)
    play(asked, tiny, "<think>\nA greeting.\n</think>\n\nHello!")
    message = asked.answer.whole()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Hello!", "refusal": None, "reasoning_content": "A greeting."}


def test_a_prompt_that_opens_a_thought_begins_the_answer_inside_it() -> None:
    tiny = served(template=template(thoughts=True, opens=True), limits=EngineLimits(context=200))
    asked = chat(tiny, ("user", "Hi"), max_tokens=60, stream=True)
    deltas = [choice["delta"] for chunk in play(asked, tiny, "hm</think>Yes") for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes"


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def test_calls_are_told_as_calls_streamed_and_whole() -> None:
    tiny = served(template=template(tools=True), limits=EngineLimits(context=600))
    said = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    for stream in (False, True):
        asked = chat(tiny, ("user", "Hi"), tools=[TOOL], max_tokens=200, stream=stream)
        chunks = play(asked, tiny, said)
        message = asked.answer.whole()["choices"][0]["message"]
        assert asked.answer.whole()["choices"][0]["finish_reason"] == "tool_calls"
        assert message["content"] == "Let me see."
        call, = message["tool_calls"]
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Zürich"}
        streamed = [made for chunk in chunks for choice in chunk["choices"]
                    for made in choice["delta"].get("tool_calls", ())]
        assert streamed == [{"index": 0, **call}]


def test_tools_stand_in_the_prompt_and_calls_are_given_to_the_template_as_objects() -> None:
    tiny = served(template=template(tools=True), limits=EngineLimits(context=900))
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_call_id": "1"}]
    from server.test_bodies import ask

    prompt = bytes(ask(tiny, "/v1/chat/completions", messages=messages, tools=[TOOL]).requests[0].row.tokens).decode()
    assert '"name": "weather"' in prompt.split("<|im_end|>")[0]
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>' in prompt
    none = ask(tiny, "/v1/chat/completions", messages=messages[:1], tools=[TOOL], tool_choice="none")
    assert "weather" not in bytes(none.requests[0].row.tokens).decode()


@pytest.mark.parametrize(("text", "names"), [
    ('{"name": "f", "arguments": {}}', ["f"]),
    ('{"name": "f", "parameters": {"a": 1}}, {"name": "g", "arguments": "{}"}', ["f", "g"]),
    ("{", []), ('{"name": 1, "arguments": {}}', []), ("[1]", []), ("", []), ('{"name": "f", "arguments": {}} x', [])])
def test_what_is_no_call_is_none(text: str, names: list[str]) -> None:
    assert [call.name for call in read_calls(text)] == names
