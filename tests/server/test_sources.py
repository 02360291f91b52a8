"""Encoder-decoders and beams over HTTP: a prompt is the source, and answers are those of `weft.translate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import weft
from decoding.small_models import build
from server.fake_engine import MODEL
from weft import api
from weft.api.translating import source_row
from weft.checkpoints import Loaded
from weft.core.model import LanguageModel
from weft.server.app import application
from weft.server.serve_model import answer_requests
from weft.server.served import Served
from weft.serving.engine import Engine
from weft.serving.requests import EngineLimits
from weft.serving.speculation import PromptDrafts
from weft.serving.thread import EngineThread
from weft.tokenizers import ByteTokenizer

BLOCK: list[dict[str, Any]] = MODEL["blocks"][0]["layers"]
TRANSLATOR: dict[str, Any] = {
    **MODEL, "kind": "encoder_decoder", "embedding": {"std": 1.0}, "readout": {"kind": "linear", "tied": False},
    "blocks": [{"kind": "pre", "layers": [BLOCK[0], {"kind": "cross_attention", "n_heads": 2}, BLOCK[1]]}],
    "encoder": {"kind": "encoder", "vocab_size": 257, "d_model": 8, "context": 40,
                "position": {"kind": "learned", "std": 1.0},
                "blocks": [{"kind": "pre", "layers": [
                    {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}, BLOCK[1]]}]}}
TEXTS = ["one", "twenty-two", "é"]
LIMITS = EngineLimits(rows=4, prefix_tokens=4)


def loaded_of(config: dict[str, Any], path: str = "tiny", seed: int = 1) -> Loaded:
    model = build(config, seed=seed).float().eval()
    return Loaded(model, ByteTokenizer(), model.config, None, {}, Path(path))


def causal(loaded: Loaded) -> LanguageModel:
    assert isinstance(loaded.model, LanguageModel)
    return loaded.model


@contextmanager
def asked(loaded: Loaded, *adapters: Loaded, **options: Any) -> Iterator[TestClient]:
    """A client of a server of a model and of adapters, which are named by their paths."""
    named = {each.path.name: causal(each) for each in adapters}
    engine = Engine(causal(loaded), loaded.tokenizer, start=256, limits=LIMITS, adapters=named, **options)
    thread = EngineThread(engine)
    thread.start()
    served = Served("tiny", loaded, LIMITS, tuple(named), "plain")
    try:
        with TestClient(application(served, engine), base_url="http://localhost") as client:
            yield client
            figures = engine.figures()
            assert (figures.running, figures.waiting, figures.slots, figures.state_bytes) == (0, 0, 0, 0)
    finally:
        thread.stop()


@pytest.fixture(scope="module")
def translator() -> Iterator[tuple[Loaded, TestClient]]:
    loaded = loaded_of(TRANSLATOR)
    with asked(loaded) as client:
        yield loaded, client


def complete(client: TestClient, status: int = 200, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def test_a_prompt_is_translated_as_the_library_translates_it(translator: tuple[Loaded, TestClient]) -> None:
    loaded, client = translator
    answer = complete(client, prompt=TEXTS, temperature=0, max_tokens=30)
    assert [each.strip() for each in texts(answer)] == list(weft.translate(loaded, TEXTS, api.Search(
        beams=1, max_new_tokens=30)).texts)
    rows = [source_row(loaded, text) for text in TEXTS]
    assert answer["usage"]["prompt_tokens"] == sum(len(row.tokens) + len(row.source or ()) for row in rows)
    ids = complete(client, prompt=[list(row.source or ()) for row in rows], temperature=0, max_tokens=30)
    assert texts(ids) == texts(answer)
    streamed = client.post("/v1/completions", json={"prompt": TEXTS[1], "temperature": 0, "max_tokens": 30,
                                                    "stream": True}).text.removesuffix("data: [DONE]\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in streamed.strip().split("\n\n")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == texts(answer)[1]


def test_a_translation_has_room_for_more_tokens_than_its_source(translator: tuple[Loaded, TestClient]) -> None:
    loaded, client = translator
    answer = complete(client, prompt="one", temperature=0, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == len(source_row(loaded, "one").source or ()) + 50


@pytest.mark.parametrize("config", [MODEL, TRANSLATOR], ids=["decoder", "translator"])
@pytest.mark.parametrize("penalty", [None, 0.0])
def test_beams_are_those_of_the_library(config: dict[str, Any], penalty: float | None) -> None:
    loaded, given = loaded_of(config), 1.0 if penalty is None else penalty
    with asked(loaded) as client:
        more: dict[str, Any] = {} if penalty is None else {"length_penalty": penalty}
        answer = complete(client, prompt=TEXTS, max_tokens=20, n=2, best_of=4, use_beam_search=True, **more)
    if config is TRANSLATOR:
        found = weft.translate(loaded, TEXTS, api.Search(4, given, "power", 20)).beams.rows
    else:
        found = weft.beam_search(loaded, TEXTS, max_new_tokens=20, beams=4, length_penalty=given).rows
    wanted = [hypothesis for row in found for hypothesis in row[:2]]
    assert texts(answer) == [each.text for each in wanted]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop" if each.stopped else "length"
                                                                        for each in wanted]
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert answer["usage"]["completion_tokens"] == sum(len(each.tokens) for row in found for each in row)


def test_beams_are_searched_beside_other_rows_and_with_an_adapter() -> None:
    base, other = loaded_of(MODEL), loaded_of(MODEL, "other", 2)
    with asked(base, other) as client:
        for name, loaded in (("other", other), ("tiny", base)):
            alone = complete(client, model=name, prompt="The", max_tokens=20, temperature=0)
            answer = complete(client, model=name, prompt=["The", "A"], max_tokens=20, best_of=3, use_beam_search=True)
            assert texts(answer) == [row[0].text for row in weft.beam_search(loaded, ["The", "A"], max_new_tokens=20,
                                                                             beams=3).rows]
            assert texts(alone) == [row.text for row in weft.generate(loaded, "The", max_new_tokens=20).rows]


@pytest.mark.parametrize(("body", "where", "says"), [
    ({"stream": True}, "stream", "whole texts"),
    ({"logprobs": 1}, "logprobs", "whole texts"),
    ({"echo": True}, "echo", "source"),
    ({"temperature": 0.5}, "temperature", "whole texts"),
    ({"top_p": 0.5}, "top_p", "whole texts"),
    ({"top_k": 5}, "top_k", "whole texts"),
    ({"min_p": 0.5}, "min_p", "whole texts"),
    ({"repetition_penalty": 1.5}, "repetition_penalty", "whole texts"),
    ({"presence_penalty": 1}, "presence_penalty", "whole texts"),
    ({"frequency_penalty": 1}, "frequency_penalty", "whole texts"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "whole texts"),
    ({"stop": "a"}, "stop", "whole texts"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"length_penalty": 21}, "length_penalty", "20"),
    ({"use_beam_search": None, "length_penalty": 0.5}, "length_penalty", "use_beam_search"),
])
def test_what_beams_cannot_honour_is_named(translator: tuple[Loaded, TestClient], body: dict[str, Any], where: str,
                                           says: str) -> None:
    error = complete(translator[1], 400, **{"prompt": "one", "use_beam_search": True, "best_of": 2, **body})["error"]
    assert error["param"] == where and says in error["message"]


@pytest.mark.parametrize(("path", "body", "where", "says"), [
    ("/v1/completions", {"prompt": "one", "echo": True}, "echo", "source"),
    ("/v1/completions", {"prompt": "  "}, "prompt", "empty"),
    ("/v1/completions", {"prompt": ["a", "b" * 60]}, "prompt[1]", "61 tokens, and the encoder has positions for 40"),
    ("/v1/completions", {"prompt": [5, 257]}, "prompt[0]", "257 is outside"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 10**9}, "max_tokens", "context has room"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "messages", "/v1/completions"),
    ("/v1/responses", {"input": "a"}, "input", "/v1/completions"),
    ("/classify", {"input": "a"}, None, ""),
])
def test_what_a_translator_cannot_do_is_a_400(translator: tuple[Loaded, TestClient], path: str, body: dict[str, Any],
                                              where: str | None, says: str) -> None:
    error = complete(translator[1], 400, path, **body)["error"]
    assert says in error["message"] and (where is None or error["param"] == where)


def test_files_of_requests_are_translated_and_searched_too(tmp_path: Path) -> None:
    loaded = loaded_of(TRANSLATOR)
    bodies: list[dict[str, Any]] = [{"prompt": "one", "temperature": 0, "max_tokens": 9},
                                    {"prompt": "one", "best_of": 3, "use_beam_search": True, "max_tokens": 9}]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(
        {"custom_id": str(place), "method": "POST", "url": "/v1/completions", "body": body}) + "\n"
        for place, body in enumerate(bodies)))
    answer_requests(loaded, tmp_path / "requests.jsonl", tmp_path / "answers.jsonl")
    found = {line["custom_id"]: texts(line["response"]["body"])[0].strip() for line in map(
        json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())}
    assert found == {str(place): weft.translate(loaded, "one", api.Search(beams, 1.0, "power", 9)).texts[0]
                     for place, beams in enumerate((1, 3))}


@pytest.mark.parametrize(("temperature", "kind"), [(0, "accepted"), (1, "rejected")])
def test_guesses_that_were_right_and_wrong_are_told_in_the_usage(temperature: int, kind: str) -> None:
    loaded = loaded_of(MODEL)
    body = {"prompt": "abababababab", "temperature": temperature, "seed": 3, "max_tokens": 40, "ignore_eos": True}
    with asked(loaded) as client:
        plain = complete(client, **body)
    with asked(loaded, drafting=lambda: PromptDrafts(4)) as client:
        answer, figures = complete(client, **body), client.get("/metrics").text
    details = answer["usage"].pop("completion_tokens_details")
    assert texts(answer) == texts(plain) and answer["usage"] == plain["usage"]
    accepted, rejected = details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]
    assert details[f"{kind}_prediction_tokens"] > 0
    assert f"weft_accepted_total {accepted:.1f}" in figures
    assert f"weft_drafted_total {accepted + rejected:.1f}" in figures
