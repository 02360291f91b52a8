"""``weft generate --requests``: a file of requests is answered, and goes on where it was left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Weft = Callable[..., Any]
Refuse = Callable[..., str]


def request(custom_id: str, url: str = "/v1/completions", **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + "\n"


def answers(path: Path) -> dict[str, Any]:
    return {each["custom_id"]: each for each in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def test_a_file_of_requests_is_answered_as_the_texts_of_generate(weft: Weft, run: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    chat = [{"role": "user", "content": "line"}]
    source.write_text(request("plain", prompt="line 1: ", max_tokens=6, temperature=0)
                      + request("chat", "/v1/chat/completions", messages=chat, max_tokens=30,
                                response_format={"type": "json_schema", "json_schema": {"name": "yes", "schema": {
                                    "enum": [True]}}})
                      + request("wrong", prompt="line", max_token=3) + request("nowhere", "/v1/images", prompt="line"),
                      encoding="utf-8")
    told = weft("generate", run, "--requests", source, "--out", out, "--template", "plain")
    assert told.code == 0 and told.out == ""
    assert "4 of 4 requests answered, 2 of them by errors; 0 were before." in told.err
    found = answers(out)
    alone = weft("generate", run, "--prompt", "line 1: ", "--max-new-tokens", "6", "--greedy", "--json").json()
    body = found["plain"]["response"]["body"]
    assert body["choices"][0]["text"] == alone["rows"][0]["text"] and body["usage"]["completion_tokens"] == 6
    said = found["chat"]["response"]["body"]["choices"][0]
    assert json.loads(said["message"]["content"]) is True and said["finish_reason"] == "stop"
    assert {key: found[key]["response"]["status_code"] for key in found} == {
        "plain": 200, "chat": 200, "wrong": 400, "nowhere": 400}
    assert "max_token" in found["wrong"]["response"]["body"]["error"]["message"]
    first = out.read_bytes()
    with source.open("a", encoding="utf-8") as file:
        file.write(request("later", prompt=[1, 2], max_tokens=2))
    again = weft("generate", run, "--requests", source, "--out", out, "--template", "plain")
    assert "1 of 5 requests answered, 0 of them by errors; 4 were before." in again.err
    assert out.read_bytes().startswith(first) and set(answers(out)) == {*found, "later"}


def test_what_does_not_fit_a_file_of_requests_is_refused(refused: Refuse, run: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    source.write_text(request("a", prompt="x"), encoding="utf-8")
    assert "--requests, --out: one without the other. Give both" in refused("generate", run, "--requests", source)
    assert "--requests, --out: one without the other. Give both" in refused("generate", run, "--out", out)
    for more in (("--prompt", "x"), ("--temperature", "1"), ("--json",), ("--seed", "3"), ("--stop", "x")):
        assert "options of single texts beside a file of requests. Give both, and what each request" in refused(
            "generate", run, "--requests", source, "--out", out, *more)
    out.write_text("mine\n", encoding="utf-8")
    assert "line 1 is no answer to one of these" in refused("generate", run, "--requests", source, "--out", out)
    assert out.read_text(encoding="utf-8") == "mine\n"
    assert "the file cannot be read" in refused("generate", run, "--requests", tmp_path / "none", "--out", out)


def test_files_that_name_another_model_are_taken_under_its_name(weft: Weft, run: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    source.write_text(request("one", prompt="line", max_tokens=2, model="gpt-4o-mini")
                      + request("response", "/v1/responses", input="line", max_output_tokens=2, model="gpt-4o-mini")
                      + request("third", prompt="line", max_tokens=2, model="gpt-4o"), encoding="utf-8")
    weft("generate", run, "--requests", source, "--out", out, "--model-name", "gpt-4o-mini", "--template", "plain")
    found = answers(out)
    assert {key: each["response"]["status_code"] for key, each in found.items()} == {
        "one": 200, "response": 200, "third": 404}
    assert found["response"]["response"]["body"]["model"] == "gpt-4o-mini"
    assert "--requests" in weft("generate", run, "--prompt", "a", "--model-name", "b").err
