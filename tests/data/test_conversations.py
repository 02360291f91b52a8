"""Conversations in the shapes in which they are published, and what is wrong with one, with its file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from pyarrow import parquet

from weft.core.errors import DataError
from weft.data.conversation import conversation_of, pair_of
from weft.data.conversations import preference_of, read_conversations, talk_of, texts_in

ASK, SAY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}
NO = {"role": "assistant", "content": "No."}
TURNS = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes."}]


@pytest.mark.parametrize("record", [
    {"messages": [ASK, SAY]},
    {"messages": [ASK, SAY], "label": True},
    {"conversations": TURNS},
    {"conversations": [ASK, SAY], "system": ""},
    {"instruction": "Hi", "input": "", "output": "Yes."},
    {"instruction": "Hi", "output": "Yes."},
    {"prompt": "Hi", "completion": "Yes."},
    {"prompt": [ASK], "completion": [SAY]},
    {"prompt": "Hi", "response": "Yes."},
    {"instruction": "Hi", "input": "", "output": "Yes.", "chosen": "Yes.", "rejected": "No."},
], ids=lambda record: "-".join(record))
def test_every_shape_gives_the_same_messages(record: dict[str, Any]) -> None:
    assert conversation_of(record, "here") == ([ASK, SAY], None)


@pytest.mark.parametrize("record", [
    {"prompt": "Hi", "chosen": "Yes.", "rejected": "No."},
    {"prompt": [ASK], "chosen": [SAY], "rejected": [NO]},
    {"prompt": [ASK], "chosen": [ASK, SAY], "rejected": [ASK, NO]},
    {"chosen": [ASK, SAY], "rejected": [ASK, NO]},
    {"conversations": TURNS[:1], "chosen": TURNS[1], "rejected": {"from": "gpt", "value": "No."}},
    {"instruction": "Hi", "input": "", "output": "Yes.", "chosen": "Yes.", "rejected": "No."},
], ids=["texts", "messages", "whole", "no prompt", "sharegpt", "alpaca"])
def test_every_shape_of_a_pair_gives_the_same(record: dict[str, Any]) -> None:
    assert pair_of(record, "here") == ([ASK], [SAY], [NO], None)


def test_further_fields_of_the_shapes() -> None:
    found = conversation_of({"instruction": "Add", "input": "1, 2", "output": "3", "system": "Be brief.",
                             "history": [["Hi", "Yes."]]}, "here")
    assert found.messages == [{"role": "system", "content": "Be brief."}, ASK, SAY,
                              {"role": "user", "content": "Add\n\n1, 2"}, {"role": "assistant", "content": "3"}]
    shared = {"messages": [ASK, SAY, ASK]}
    assert conversation_of(shared, "here").messages == [ASK, SAY, ASK]
    both = {"prompt": "other", "completion": "x", "messages": [ASK, SAY]}
    assert conversation_of(both, "here", "completion").messages[0]["content"] == "other"


def test_a_pair_without_a_prompt_goes_apart_at_the_last_question() -> None:
    """Answers that begin alike are whole in both."""
    more = [ASK, SAY, {"role": "user", "content": "And?"}]
    found = pair_of({"chosen": [*more, SAY, ASK, NO], "rejected": [*more, SAY, ASK, SAY]}, "here")
    assert (len(found.prompt), found.chosen, found.rejected) == (5, [NO], [SAY])
    other = [{"role": "user", "content": "Or?"}, NO]
    found = pair_of({"chosen": [ASK, SAY, ASK, NO], "rejected": [ASK, SAY, *other]}, "here")
    assert found == ([ASK], [SAY, ASK, NO], [SAY, *other], None)


def test_calls_of_functions_and_their_results_are_messages() -> None:
    tools = [{"name": "f", "parameters": {}}]
    record = {"conversations": [TURNS[0], {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
                                {"from": "observation", "value": "3"}, TURNS[1]], "tools": json.dumps(tools)}
    found = conversation_of(record, "here")
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assert found.messages == [ASK, {"role": "assistant", "content": "", "tool_calls": [call]},
                              {"role": "tool", "content": "3"}, SAY]
    assert found.tools == tools


@pytest.mark.parametrize(("record", "message"), [
    ([], "here: a list, while a record is an object with fields"),
    ({"text": "x"}, "here: no conversation of a known shape: none of the fields messages, conversations, instruction, "
                    "prompt; the fields are: 'text'"),
    ({"messages": []}, "here, messages: no messages"),
    ({"messages": "x"}, "here, messages: a str, while a list of messages is expected"),
    ({"messages": ["x"]}, "here, messages, message 1: a str, not a message"),
    ({"messages": [ASK]}, "here: no answer: no message is an assistant's"),
    ({"instruction": "Hi"}, "here: no answer: there is no field 'output'"),
    ({"prompt": "Hi"}, "here: no answer: there is no field 'completion'"),
    ({"messages": [SAY, ASK]}, "here: the conversation starts with the assistant"),
    ({"messages": [{"role": "system", "content": "x"}, SAY]}, "here: the conversation starts with the assistant"),
    ({"messages": [{"role": "user", "content": " "}, SAY]}, "message 1: the user's message is empty"),
    ({"messages": [ASK, {"role": "assistant", "content": ""}]}, "message 2: the assistant's message is empty"),
    ({"messages": [ASK, {"role": "assistant"}]}, "message 2: the assistant's content is missing"),
    ({"messages": [ASK, {"role": "asistant", "content": "x"}]}, "message 2: 'asistant' is no known role. .*assistant"),
    ({"messages": [ASK, {"content": "x"}]}, "message 2: None is no known role. Give each message a role"),
    ({"messages": [ASK, SAY], "label": False}, "here: label is false: the answer is not wanted"),
    ({"messages": [ASK, SAY], "tools": "{"}, "here, tools: not JSON"),
    ({"messages": [ASK, SAY], "tools": "{}1"}, "here, tools: not JSON"),
    ({"messages": [ASK, SAY], "tools": {"a": 1}}, "here, tools: tools hold a dict, not a list|tools hold a dict"),
    ({"conversations": [TURNS[0], {"from": "function_call", "value": "{}"}]}, "a function call without a name"),
    ({"instruction": 3, "output": "x"}, "here: instruction or input is not text"),
    ({"instruction": "x", "output": "x", "history": [["a"]]}, "here: history is not a list of pairs"),
    ({"prompt": "Hi", "chosen": "a", "rejected": "b"}, r"here: a preference pair .* Give task: preferences"),
])
def test_what_is_wrong_is_said_with_its_place(record: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        conversation_of(record, "here")


@pytest.mark.parametrize(("record", "message"), [
    ({"prompt": "Hi", "chosen": "a"}, "here: no field 'rejected'; the fields are: 'prompt', 'chosen'"),
    ({"chosen": [ASK, SAY], "rejected": [{"role": "user", "content": "Other"}, NO]}, "here: no prompt: chosen and "),
    ({"prompt": "Hi", "chosen": " ", "rejected": "b"}, "here, chosen: the assistant's message is empty"),
    ({"prompt": [ASK], "chosen": [SAY, ASK], "rejected": [NO]}, "here, chosen: the answer is not an assistant's"),
])
def test_what_is_wrong_with_a_pair_is_said(record: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        pair_of(record, "here")


def test_a_shape_that_is_named_must_be_there() -> None:
    with pytest.raises(DataError, match=r"no field 'instruction', which a record of the shape 'alpaca' has; the fields "
                                        r"are: 'messages'\. Name another shape with task\.shape"):
        conversation_of({"messages": [ASK, SAY]}, "here", "alpaca")


def files(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Path]:
    """The same records in every format."""
    lines, array, table = folder / "a.jsonl", folder / "a.json", folder / "a.parquet"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    array.write_text(json.dumps(rows, indent=2), "utf-8")
    parquet.write_table(arrow.Table.from_pylist(rows), table)
    return {"jsonl": lines, "json": array, "parquet": table}


def test_all_formats_hold_the_same_conversations(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": f"é {i}"}, SAY]} for i in range(3)]
    read = {name: read_conversations(path) for name, path in files(tmp_path, rows).items()}
    for corpus in read.values():
        assert [talk_of(document).messages for document in corpus.documents] == [row["messages"] for row in rows]
        assert list(texts_in(corpus)) == ["é 0", "Yes.", "é 1", "Yes.", "é 2", "Yes."] and corpus.whole
    assert [document.name for document in read["json"].documents] == ["a.json:1", "a.json:2", "a.json:3"]


def test_records_of_an_array_on_one_line_have_sides_of_their_own(tmp_path: Path) -> None:
    """As Python's `json.dump` writes them: all had the name of line 1, so that none could be held out."""
    file = tmp_path / "a.json"
    rows = [{"messages": [{"role": "user", "content": f"é {i}"}, SAY]} for i in range(300)]
    file.write_text(json.dumps(rows), "utf-8")
    corpus = read_conversations(file)
    assert len({document.name for document in corpus.documents}) == 300
    train, held_out = corpus.split(0.1, seed=0)
    assert len(train.documents) + len(held_out.documents) == 300 and 15 <= len(held_out.documents) <= 50


def test_pairs_are_read_back(tmp_path: Path) -> None:
    corpus = read_conversations(files(tmp_path, [{"prompt": "Hi", "chosen": "Yes.", "rejected": "No."}])["json"],
                                pairs=True)
    assert preference_of(corpus.documents[0]) == ([ASK], [SAY], [NO], None)
    assert list(texts_in(corpus)) == ["Hi", "Yes.", "No."]


@pytest.mark.parametrize(("name", "text", "message"), [
    ("a.json", '[{"messages": []}]', r"a\.json, line 1, messages: no messages"),
    ("a.json", '[\n {"prompt": "a",\n  "completion": "b"},\n {"prompt": "a"}]', r"a\.json, line 4: no answer"),
    ("a.json", '{"messages": []}', r"a\.json, line 1: the file is not a JSON array\. .* \.jsonl"),
    ("a.json", '[{"prompt": "a", "completion": "b"},\n {"prompt": }]', r"a\.json, line 2: not JSON"),
    ("a.json", '[{"prompt": "a", "completion": "b"}', r"a\.json, line 1: the array does not go on or end here"),
    ("a.json", '[{"prompt": "a", "completion": "b"}]\n\nx', r"a\.json, line 3: text follows the array"),
    ("a.json", "[]", r"a\.json: the file is empty"),
    ("a.jsonl", '{"prompt": "a", "completion": "b"}\n{"prompt": "a"}', r"a\.jsonl, line 2: no answer"),
    ("a.jsonl", '{"prompt": "a", "completion": "\\ud800"}', r"a\.jsonl, line 1: .* half a surrogate pair"),
    ("a.txt", "Hi", r"a\.txt: the file's name ends in \.txt, and conversations are read from files of \.json "),
])
def test_errors_name_file_and_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(DataError, match=message):
        read_conversations(tmp_path / name)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'["\xff"]')
    with pytest.raises(DataError, match=r"a\.json: the file is not UTF-8: byte 0xff at offset 2"):
        read_conversations(tmp_path / "a.json")
