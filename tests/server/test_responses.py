"""Responses: their items, and their events in OpenAI's order and names, which OpenAI's own types take."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from server.fake_engine import FakeEngine, failure, served, spells
from server.test_bodies import ask, play, refused
from server.test_dialects import TOOL, template
from server.test_process import Process, checkpoint, server
from weft.server.app import application
from weft.server.bodies import error_object
from weft.server.replies import ReadBody
from weft.server.served import Served
from weft.serving.requests import EngineLimits

__all__ = ["checkpoint", "server"]
LIMITS = EngineLimits(context=2000)
FLAT = {"type": "function", **TOOL["function"]}
SAID = ('<think>\nA city.\n</think>\n\nLet me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n'
        '</tool_call>\nDone.')
PATH = "/v1/responses"


@pytest.fixture(scope="module")
def tiny() -> Served:
    return served(template=template(tools=True, thoughts=True), limits=LIMITS)


def respond(tiny: Served, **body: Any) -> ReadBody:
    return ask(tiny, PATH, **{"input": "Hi", "max_output_tokens": 300, **body})


def prompt(asked: ReadBody) -> str:
    return bytes(asked.requests[0].row.tokens).decode()


def taken_by_openai(record: Any, data: Any) -> Any:
    """What OpenAI's types make of an object. How many tokens were written into a cache is not told, and is needed."""
    data = json.loads(json.dumps(data))
    usage = (data.get("response") or data).get("usage")
    if usage:
        usage["input_tokens_details"]["cache_write_tokens"] = 0
    return adapter(record).validate_python(data)


@cache
def adapter(record: Any) -> TypeAdapter[Any]:
    return TypeAdapter(record)


def test_thoughts_text_and_calls_are_items_in_their_order(tiny: Served) -> None:
    asked = respond(tiny, tools=[FLAT])
    play(asked, tiny, SAID)
    whole = asked.answer.whole()
    found = taken_by_openai(Response, whole)
    assert [item.type for item in found.output] == ["reasoning", "message", "function_call", "message"]
    assert found.output[0].content[0].text == "A city."
    assert found.output_text == "Let me see.Done." and found.status == "completed"
    assert json.loads(found.output[2].arguments) == {"city": "Zürich"} and found.output[2].name == "weather"
    assert len({item.id for item in found.output}) == 4
    tokens = len(SAID.encode()) + 1
    thought = len("<think>\nA city.\n</think>") + 1  # with the token that shows that its mark is whole
    assert found.usage.output_tokens == tokens and found.usage.input_tokens_details.cached_tokens == 2
    assert abs(found.usage.output_tokens_details.reasoning_tokens - thought) <= len("<think>")
    assert whole["store"] is False and whole["tools"] == [FLAT] and whole["max_output_tokens"] == 300


def test_events_have_openais_names_and_order(tiny: Served) -> None:
    asked = respond(tiny, tools=[FLAT], stream=True)
    events = play(asked, tiny, SAID)
    parsed = [taken_by_openai(ResponseStreamEvent, event) for event in events]
    assert [event.sequence_number for event in parsed] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    once = [kind for place, kind in enumerate(kinds) if place == 0 or kinds[place - 1] != kind]
    text = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
            "output_item.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert once == ["created", "in_progress", *(each.replace("output_text", "reasoning_text") for each in text), *text,
                    *call, *text, "completed"]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2, 3]
    assert all(event["item"]["status"] == "in_progress" and not event["item"].get("content") for event in added)
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "Let me see.Done."
    assert events[-1]["response"] == asked.answer.whole()
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


def test_an_answer_that_is_cut_is_incomplete_and_an_empty_one_has_a_message(tiny: Served) -> None:
    asked = respond(tiny, max_output_tokens=3, stream=True)
    events = play(asked, tiny, "Hello")
    assert events[-1]["type"] == "response.incomplete"
    cut = taken_by_openai(Response, events[-1]["response"])
    assert (cut.status, cut.incomplete_details.reason, cut.output[0].status) == (
        "incomplete", "max_output_tokens", "incomplete")
    asked = respond(tiny)
    play(asked, tiny, "")
    assert taken_by_openai(Response, asked.answer.whole()).output_text == ""
    assert len(asked.answer.whole()["output"]) == 1


def test_log_probabilities_are_told_of_the_text_where_they_are_included(tiny: Served) -> None:
    asked = respond(tiny, include=["message.output_text.logprobs"], top_logprobs=1)
    events = play(asked, tiny, "<think>\nno\n</think>\n\nYes é")
    told = asked.answer.whole()["output"][1]["content"][0]["logprobs"]
    assert [each["token"] for each in told][-7:] == ["Y", "e", "s", " ", "bytes:\\xc3", "bytes:\\xa9", "<|endoftext|>"]
    assert told[-2]["top_logprobs"] == [{"token": "bytes:\\xa9", "logprob": -0.5, "bytes": [0xA9]}]
    streamed = [each for event in events if event["type"].startswith("response.output_text.")
                for each in event["logprobs"]]
    assert streamed == told


def test_items_are_a_conversation_as_the_template_writes_it(tiny: Served) -> None:
    asked = respond(tiny, tools=[FLAT], max_output_tokens=30, instructions="Be brief.", input=[
        {"role": "developer", "content": "Now."}, {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "status": "completed", "id": "msg_1", "content": [
            {"type": "output_text", "text": "I see.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": "?"}])
    assert prompt(asked).split("<|im_start|>")[2:] == [
        "system\nBe brief.<|im_end|>\n", "system\nNow.<|im_end|>\n", "user\nHi<|im_end|>\n",
        'assistant\n<think>\nhm\n</think>\n\nI see.<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n'
        '</tool_call><tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call><|im_end|>\n',
        "tool\nsunny<|im_end|>\n", "tool\n?<|im_end|>\n", "assistant\n"]


def test_what_was_answered_can_be_sent_back(tiny: Served) -> None:
    asked = respond(tiny, tools=[FLAT])
    play(asked, tiny, SAID)
    again = respond(tiny, tools=[FLAT], max_output_tokens=30, input=[
        {"role": "user", "content": "Hi"}, *asked.answer.whole()["output"], {"role": "user", "content": "So?"}])
    assert "A city." in prompt(again) and "Zürich" in prompt(again) and "Done." in prompt(again)


def test_forms_and_choices_are_those_of_the_chat(tiny: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    asked = respond(tiny, text={"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}})
    make = asked.requests[0].settings.constraint
    assert make is not None and bool(make().allowed()[ord("{")]) and not bool(make().allowed()[ord("a")])
    assert asked.answer.whole()["text"]["format"]["schema"] == schema
    for choice in ("required", {"type": "function", "name": "weather"}):
        make = respond(tiny, tools=[FLAT], tool_choice=choice).requests[0].settings.constraint
        assert make is not None and bool(make().allowed()[ord("<")]) and not bool(make().allowed()[ord("a")])


def test_an_effort_is_given_to_a_template_that_reads_it() -> None:
    reads = served(template="{{ reasoning_effort }}:{% for m in messages %}{{ m.content }}{% endfor %}", limits=LIMITS)
    assert prompt(respond(reads, reasoning={"effort": "high"})) == "high:Hi"
    from server.test_bodies import chat

    assert prompt(chat(reads, ("user", "Hi"), reasoning_effort="low")) == "low:Hi"


@pytest.mark.parametrize(("body", "where", "says"), [
    ({"store": True}, "store", "False"), ({"truncation": "auto"}, "truncation", "disabled"),
    ({"previous_response_id": "resp-1"}, "previous_response_id", "Nothing is stored"),
    ({"background": True}, "background", "Nothing is stored"), ({"conversation": "c"}, "conversation", "not supported"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'function'"),
    ({"include": ["reasoning.encrypted_content"]}, "include[0]", "logprobs"), ({"n": 2}, "n", "1"),
    ({"top_logprobs": 2}, "top_logprobs", "needs include"), ({"nonsense": 1}, "nonsense", "unknown"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort", "reads none"),
    ({"reasoning": {"summary": "auto"}}, "reasoning.summary", "'effort'"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "'format'"), ({"input": []}, "input", "at least 1"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments", "needs one"),
    ({"input": [{"role": "user", "content": "a", "call_id": "c"}]}, "input[0].call_id", "has none"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "text": "a"}]}]}, "input[0].content[0].type",
     "'text'"),
    ({"input": "x" * 3000, "max_output_tokens": None}, "input", "context has room"),
    ({"max_output_tokens": 10**6}, "max_output_tokens", "context has room"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "no"}}}}, "text.format", "compile"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"), ({"max_tokens": 3}, "max_tokens", "unknown"),
    ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice.function", "no name of one"),
])
def test_what_cannot_be_honoured_is_named(tiny: Served, body: dict[str, Any], where: str, says: str) -> None:
    error = refused(tiny, PATH, **{"input": "Hi", **body})
    assert error.where is not None and error.where.startswith(where), str(error)
    assert says in str(error)
    assert error_object(error)[0] == 400


def test_a_response_that_fails_says_so_in_its_stream(tiny: Served) -> None:
    engine = FakeEngine(tiny.loaded.tokenizer, spells("Hello there"), pause=0.01, limits=LIMITS)
    client = TestClient(application(tiny, engine), base_url="http://localhost")
    with engine.running(), client, client.stream("POST", PATH, json={"input": "Hi", "stream": True}) as answer:
        told = []
        for line in answer.iter_lines():
            told.append(line)
            if "output_text.delta" in line and not engine.broken:
                engine.broken.append(failure())
    assert told[0] == "event: response.created" and "data: [DONE]" not in told
    last = json.loads(told[-2].removeprefix("data: "))
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error" and "secret" not in told[-2]
    assert taken_by_openai(ResponseStreamEvent, last).response.status == "failed"


BODY: dict[str, Any] = {"model": "tiny", "input": "Hi", "max_output_tokens": 20, "extra_body": {"seed": 5}}


def test_openais_client_asks_for_responses(server: Process) -> None:
    client = server.client()
    whole = client.responses.create(**BODY)
    assert whole.status in ("completed", "incomplete") and whole.usage is not None
    events = list(client.responses.create(**BODY, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    with client.responses.stream(**BODY) as stream:
        kinds = [event.type for event in stream]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == events[-1].type
    chat = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=20,
                                          seed=5)
    assert chat.choices[0].message.content == whole.output_text, "the same row of the engine"
    with pytest.raises(openai.BadRequestError, match="store"):
        client.responses.create(**BODY, store=True)

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none", max_retries=0) as other:
            answers = await asyncio.gather(*(other.responses.create(**BODY) for _ in range(4)))
            stream = await other.responses.create(**BODY, stream=True)
            text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
        return [*(answer.output_text for answer in answers), text]

    assert asyncio.run(together()) == [whole.output_text] * 5


def test_a_parsed_answer_is_of_its_schema(server: Process) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
              "additionalProperties": False}
    answer = server.client().responses.create(model="tiny", input="Hi", max_output_tokens=60, text={"format": {
        "type": "json_schema", "name": "x", "schema": schema}}, temperature=0)
    assert answer.status == "incomplete" or isinstance(json.loads(answer.output_text)["a"], bool)
