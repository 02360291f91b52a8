"""A conversation with thoughts has the ids of transformers, where the marks of a thought are special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from chat.test_chat_templates import BEGIN, END
from chat.test_thoughts import CLOSE, DROPS, FRAME, OPEN, THOUGHT, talk
from weft.chat.template import ChatTemplate
from weft.tokenizers import BPETokenizer
from weft.tokenizers.published import read_tokenizer

KEEPS = "{%- if message is undefined and '<think>' in content and content.count('</think>') %}{%- endif %}"
READS = "{%- set content = m.reasoning_content + '|' + m.thinking + '|' + content %}"


def folder_with(folder: Path) -> Any:
    """A vocabulary of bytes with the marks of turns and thoughts as special tokens, saved by transformers."""
    plain = BPETokenizer.train(["some text to learn from"], 259)
    (folder / "tokenizer.json").write_bytes(plain.files()["tokenizer.json"])
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token=END,
                                                  additional_special_tokens=[BEGIN, OPEN, CLOSE])
    theirs.save_pretrained(folder)
    return theirs


@pytest.mark.parametrize("rule", [*DROPS.values(), KEEPS], ids=[*DROPS, "keeps"])
@pytest.mark.parametrize("content", [THOUGHT, "A cat.", f"hm{CLOSE} A cat.", f"{OPEN}hm"])
def test_marks_in_answers_are_what_they_are_in_transformers(rule: str, content: str, tmp_path: Path) -> None:
    theirs, source = folder_with(tmp_path), FRAME.replace("RULE", rule)
    form = ChatTemplate(read_tokenizer(tmp_path), source)
    for messages in (talk("What?", content), talk("What?", content)[:2]):
        wanted = theirs.apply_chat_template(messages, chat_template=source, add_generation_prompt=True)["input_ids"]
        assert form.encode(messages, add_generation_prompt=True) == wanted


@pytest.mark.parametrize("fields", [{"reasoning_content": "a"}, {"thinking": "b"}, {"reasoning": "c"},
                                    {"thinking": "b", "reasoning": "c"}, {"reasoning_content": "a", "thinking": "b"},
                                    {"reasoning_content": None, "reasoning": "c"}], ids=str)
def test_fields_of_thoughts_are_those_of_transformers(fields: dict[str, Any], tmp_path: Path) -> None:
    theirs, source = folder_with(tmp_path), FRAME.replace("RULE", READS)
    messages = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "A cat.", **fields}]
    wanted = theirs.apply_chat_template(messages, chat_template=source, tokenize=False)
    assert ChatTemplate(read_tokenizer(tmp_path), source).text(messages) == wanted
