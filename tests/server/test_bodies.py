"""Bodies of OpenAI's API become requests, and events become its objects, without HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.fake_engine import served, spells
from weft.core.errors import InputError, WeftError
from weft.decoding.stopping import Writer
from weft.server.bodies import error_object, read_body
from weft.server.replies import ReadBody
from weft.server.served import Served
from weft.serving.requests import EngineLimits, OverloadedError, PromptRead, Request, TokenLogProb

LIMITS = EngineLimits(context=64)
PLAIN = "{% for m in messages %}{{ m.role + ':' + m.content + '\\n' }}{% endfor %}" \
        "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"


def ask(served: Served, path: str = "/v1/completions", **body: Any) -> ReadBody:
    """What a body asks."""
    return read_body(served, path, {"prompt": "Once", **body} if path == "/v1/completions" else body)


def play(asked: ReadBody, served: Served, *texts: str, prompts: bool = False) -> list[dict[str, Any]]:
    """The chunks of an answer whose requests say these texts, request after request."""
    chunks = []
    for place, request in enumerate(asked.requests):
        settings, row = request.settings, request.row
        told = tuple(TokenLogProb(token, None if place == 0 else -0.25, ((token, -0.25),))
                     for place, token in enumerate(row.tokens)) if request.prompt_log_probs is not None else None
        chunks += asked.answer.tell(place, PromptRead(2, "reused", told))
        writer = Writer(settings.row, row, settings.max_new_tokens, settings.ending, served.loaded.tokenizer)
        for token in spells(texts[place % len(texts)])(request)[:settings.max_new_tokens]:
            new = writer.write(token, -0.5 if settings.log_probs else None, ((token, -0.5),) * settings.top)
            chunks += asked.answer.tell(place, new)
            if new.finish:
                break
    return chunks


def refused(served: Served, path: str = "/v1/completions", **body: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        ask(served, path, **body)
    return caught.value


def test_a_completion_is_whole_with_its_usage() -> None:
    tiny = served(limits=LIMITS)
    asked = ask(tiny, max_tokens=30)
    play(asked, tiny, "upon a time")
    whole = asked.answer.whole()
    assert asked.answer.done
    assert whole["object"] == "text_completion" and whole["model"] == "tiny"
    assert whole["choices"] == [{"index": 0, "text": "upon a time", "logprobs": None, "finish_reason": "stop"}]
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17,
                              "prompt_tokens_details": {"cached_tokens": 2}}


def test_fields_reach_the_settings_of_the_rows() -> None:
    request, other = ask(served(limits=LIMITS), n=2, max_tokens=7, temperature=0.5, top_p=0.9, top_k=3, min_p=0.1,
                         repetition_penalty=1.5, presence_penalty=-1, frequency_penalty=2, logit_bias={"5": -100},
                         seed=-3, stop=["a", "b"], logprobs=4, ignore_eos=True).requests
    chosen = request.settings.sampling
    assert (chosen.temperature, chosen.top_p, chosen.top_k, chosen.min_p) == (0.5, 0.9, 3, 0.1)
    assert (chosen.repetition_penalty, chosen.presence_penalty, chosen.frequency_penalty) == (1.5, -1, 2)
    assert chosen.bias == ((5, -100.0),)
    assert (request.settings.seed, request.settings.row, other.settings.row) == (-3, 0, 1)
    assert request.settings.ending.strings == ("a", "b") and request.settings.ending.tokens == ()
    assert (request.settings.max_new_tokens, request.settings.top, request.settings.log_probs) == (7, 4, True)
    assert ask(served(limits=LIMITS)).requests[0].settings.ending.tokens == (256,)


def test_without_a_seed_two_answers_have_two() -> None:
    tiny = served(limits=LIMITS)
    assert ask(tiny).requests[0].settings.seed != ask(tiny).requests[0].settings.seed


def test_offsets_are_the_places_of_characters_of_several_bytes() -> None:
    tiny = served(limits=LIMITS)
    asked = ask(tiny, prompt="hé", max_tokens=30, logprobs=1, echo=True)
    play(asked, tiny, "ü€x")
    choice = asked.answer.whole()["choices"][0]
    told = choice["logprobs"]
    assert choice["text"] == "héü€x"
    assert told["tokens"] == ["<|endoftext|>", "h", "bytes:\\xc3", "bytes:\\xa9", "bytes:\\xc3", "bytes:\\xbc",
                              "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "x", "<|endoftext|>"]
    assert told["text_offset"] == [0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 5]
    assert told["token_logprobs"][:3] == [None, -0.25, -0.25]
    assert told["top_logprobs"][0] is None and told["top_logprobs"][1] == {"h": -0.25}


def test_no_new_token_asks_for_the_prompt_alone() -> None:
    tiny = served(limits=LIMITS)
    asked = ask(tiny, prompt=[104, 105], max_tokens=0, echo=True, logprobs=1)
    asked.answer.tell(0, PromptRead(0, "not asked", (TokenLogProb(104, None), TokenLogProb(105, -2.0, ((105, -2.0),)))))
    choice = asked.answer.whole()["choices"][0]
    assert asked.requests[0].row.tokens == (104, 105) and asked.requests[0].prompt_log_probs == 1
    assert choice["text"] == "hi" and choice["finish_reason"] == "length"
    assert choice["logprobs"]["token_logprobs"] == [None, -2.0]


def test_the_best_of_several_are_those_of_the_largest_mean_log_probability() -> None:
    tiny = served(limits=LIMITS)
    asked = ask(tiny, prompt=["a", "b"], n=1, best_of=2, max_tokens=4)
    for place, values in enumerate([(-1.0, -1.0), (-0.5,), (-0.1,), (-2.0, -2.0)]):
        settings, row = asked.requests[place].settings, asked.requests[place].row
        assert settings.log_probs
        asked.answer.tell(place, PromptRead(0, "not asked"))
        writer = Writer(settings.row, row, settings.max_new_tokens, settings.ending, tiny.tokenizer)
        for index, value in enumerate(values):
            asked.answer.tell(place, writer.write(256 if index == len(values) - 1 else 97 + place, value))
    whole = asked.answer.whole()
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [(0, ""), (1, "")]
    assert whole["usage"]["prompt_tokens"] == 4 and whole["usage"]["completion_tokens"] == 6


def test_a_stream_joins_to_the_whole_text_and_ends_with_its_usage() -> None:
    tiny = served(limits=LIMITS)
    asked = ask(tiny, stream=True, max_tokens=30, stop="END", stream_options={"include_usage": True})
    chunks = play(asked, tiny, "é, and E then ENDmore")
    *pieces, last = chunks
    assert "".join(chunk["choices"][0]["text"] for chunk in pieces) == "é, and E then "
    assert pieces[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in pieces[:-1])
    assert all(chunk["usage"] is None for chunk in pieces)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == len("é, and E then END".encode())


@pytest.mark.parametrize(("body", "where", "says"), [
    ({"max_tokenz": 1}, "max_tokenz", "Did you mean 'max_tokens'"),
    ({"suffix": "x"}, "suffix", "not supported"),
    ({"prompt": 1}, "prompt", "valid string"), ({"prompt": []}, "prompt", "no prompts"),
    ({"prompt": [1, "a"]}, "prompt", "valid"), ({"prompt": [300]}, "prompt[0]", "outside the vocabulary"),
    ({"prompt": [[1], [-1]]}, "prompt", "valid"), ({"prompt": [True]}, "prompt", "valid"),
    ({"max_tokens": "3"}, "max_tokens", "valid integer"), ({"max_tokens": -1}, "max_tokens", "greater"),
    ({"temperature": -0.1}, "temperature", "greater"), ({"top_p": 0}, "top_p", "greater"),
    ({"logprobs": True}, "logprobs", "valid integer"), ({"stream": "yes"}, "stream", "valid boolean"),
    ({"n": 3, "best_of": 2}, "best_of", "at least n"), ({"best_of": 2, "stream": True}, "best_of", "stream"),
    ({"prompt": ["a"] * 65, "n": 2}, "prompt", "at most 128"), ({"stop": ""}, "stop", "at least 1"),
    ({"stream_options": {}}, "stream_options", "without one"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "no id"), ({"logit_bias": {"257": 1}}, "logit_bias", "no id"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "less than"), ({"model": "other"}, "model", "not served"),
    ({"prompt": "x" * 64}, "prompt", "has 65 tokens, and the context has room for 64"),
    ({"max_tokens": 61}, "max_tokens", "5 tokens of prompt and 61 new ones are 65"),
])
def test_what_cannot_be_served_is_named(body: dict[str, Any], where: str, says: str) -> None:
    error = refused(served(limits=LIMITS), **body)
    assert error.where == where
    assert says in str(error)


@pytest.mark.parametrize(("content", "says"), [
    (b"", "cannot be read"), (b"{", "cannot be read"), (b'{"prompt": "\xff"}', "not UTF-8"), (b"[]", "dictionary"),
    (b'{"prompt": "a", "prompt": "b"}', "twice"), (b'{"prompt": "a", "temperature": NaN}', "NaN"),
    (b'{"prompt": "a", "temperature": 1e999}', "NaN or Infinity"), (b'{"prompt": "\\ud800"}', "surrogate"),
    (b'{"prompt": ' + b"[" * 100_000, "deep"), (b'{"prompt": [1' + b"0" * 5000 + b"]}", "digits"),
])
def test_what_is_no_body_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_body(served(limits=LIMITS), "/v1/completions", content)


def test_errors_are_told_in_openais_shape_and_nothing_of_the_server_is() -> None:
    status, told = error_object(refused(served(limits=LIMITS), prompt="x" * 64))
    assert (status, told["error"]["code"], told["error"]["param"]) == (400, "context_length_exceeded", "prompt")
    assert error_object(refused(served(limits=LIMITS), model="x"))[0] == 404
    assert error_object(OverloadedError("full.", 3))[0] == 429
    for error in (WeftError("the secret", where="/etc/secret"), RuntimeError("the secret")):
        status, told = error_object(error)
        assert status == 500 and "secret" not in json.dumps(told)


def chat(tiny: Served, *messages: tuple[str, str], **body: Any) -> ReadBody:
    return ask(tiny, "/v1/chat/completions",
               messages=[{"role": role, "content": content} for role, content in messages], **body)


def test_a_conversation_is_rendered_by_the_template_and_answered() -> None:
    tiny = served(template=PLAIN, limits=EngineLimits(context=99))
    asked = chat(tiny, ("developer", "Be brief."), ("user", "Hi"), max_completion_tokens=20, logprobs=True,
                 top_logprobs=1)
    assert bytes(asked.requests[0].row.tokens).decode() == "system:Be brief.\nuser:Hi\nassistant:"
    play(asked, tiny, "Yes é")
    choice = asked.answer.whole()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Yes é", "refusal": None}
    assert choice["finish_reason"] == "stop"
    told = choice["logprobs"]["content"]
    assert [each["token"] for each in told[:3]] == ["Y", "e", "s"] and told[4]["bytes"] == [0xC3]
    assert told[0]["top_logprobs"] == [{"token": "Y", "logprob": -0.5, "bytes": [89]}]


def test_without_a_limit_an_answer_has_the_room_of_the_context() -> None:
    tiny = served(template=PLAIN, limits=EngineLimits(context=50))
    request, = chat(tiny, ("user", "Hi")).requests
    assert request.tokens == 50


def test_a_streamed_answer_begins_with_its_role() -> None:
    tiny = served(template=PLAIN, limits=LIMITS)
    asked = chat(tiny, ("user", "Hi"), stream=True, max_tokens=20)
    first, *rest = play(asked, tiny, "Yes")
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in rest) == "Yes"
    assert rest[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(("body", "where", "says"), [
    ({"top_logprobs": 1}, "top_logprobs", "needs logprobs"), ({"max_tokens": 1, "max_completion_tokens": 1},
                                                              "max_tokens", "two limits"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "takes no tools"),
    ({"tool_choice": "auto"}, "tool_choice", "no tools"), ({"tool_choice": "must"}, "tool_choice", "'none'"),
    ({"functions": []}, "functions", "Give tools"),
    ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs", "taken"),
    ({"messages": []}, "messages", "at least 1"), ({"messages": [{"role": "user"}]}, "messages[0]", "no content"),
    ({"messages": [{"role": "user", "content": "x", "image": 1}]}, "messages[0].image", "unknown"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type", "'text'"),
    ({"messages": [{"role": "a b", "content": "x"}]}, "messages[0].role", "pattern"),
    ({"messages": [{"role": "user", "content": "x" * 80}]}, "messages", "context has room for 64"),
    ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
])
def test_what_a_conversation_cannot_have_is_named(body: dict[str, Any], where: str, says: str) -> None:
    tiny = served(template=PLAIN, limits=LIMITS)
    error = refused(tiny, "/v1/chat/completions", **{"messages": [{"role": "user", "content": "Hi"}], **body})
    assert error.where == where, str(error)
    assert says in str(error)


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(InputError, match="without a chat template"):
        chat(served(limits=LIMITS), ("user", "Hi"))


def test_a_template_that_rejects_a_conversation_is_quoted_without_its_place() -> None:
    tiny = served(template="{{ raise_exception('only users') }}", limits=LIMITS)
    with pytest.raises(InputError, match="only users") as caught:
        chat(tiny, ("user", "Hi"))
    assert caught.value.where == "messages"


def test_requests_may_name_an_adapter() -> None:
    tiny = served(limits=LIMITS, adapters=("other",))
    request: Request
    request, = ask(tiny, model="other").requests
    assert request.adapter == "other"
    assert ask(tiny, model="tiny").requests[0].adapter is None
