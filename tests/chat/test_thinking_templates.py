"""Templates of published thinking models drop the thoughts of earlier answers, whose marks are special tokens.

Thirteen ways in which such templates separate a thought from its answer, written anew and reduced to that: tools, dates
and instructions are left out. An answer may bring its thought between the marks or in a field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from weft.chat.template import ChatTemplate
from weft.tokenizers import ByteTokenizer
from weft.tokenizers.base import extended

BEGIN, END = "<|turn|>", "<|end|>"
THINK = ("<think>", "</think>")
TURN = "{{- '<|turn|>' + m.role + '\n' + content + '<|end|>' }}"
LAST_QUERY = ("{%- set ns = namespace(open=true, last=messages | length - 1) %}{%- for m in messages[::-1] %}"
              "{%- if ns.open and m.role == 'user' and not m.content.startswith('<tool_response>') %}"
              "{%- set ns.open = false %}{%- set ns.last = messages | length - 1 - loop.index0 %}{%- endif %}"
              "{%- endfor %}")
LAST_USER = ("{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
             "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}")
SPLIT = ("{%- set thought = '' %}{%- set content = m.content %}{%- if m.reasoning_content is string %}"
         "{%- set thought = m.reasoning_content %}{%- elif '</think>' in content %}"
         "{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
         "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}")
AGAIN = "{%- set content = '<think>\n' + thought + '\n</think>\n\n' + content %}"
TEXT_OF = ("{%- macro text_of(given) -%}{%- if given is string -%}{{- given }}{%- else -%}"
           "{%- for part in given -%}{{- part.text }}{%- endfor -%}{%- endif -%}{%- endmacro -%}")


@dataclass(frozen=True)
class Way:
    """How a template treats an answer.

    Attributes:
        answers: what it does with ``m``, whose text it sets as ``content``.
        before: what stands before the messages.
        marks: around a thought.
        fields: whether it knows a thought that stands in a field.
        empty: what it writes of a thought that it drops.
    """

    answers: str
    before: str = ""
    marks: tuple[str, str] = THINK
    fields: bool = False
    empty: str = ""

    @property
    def source(self) -> str:
        return (self.before + "{%- for m in messages %}{%- set content = m.content %}{%- if m.role == 'assistant' %}"
                + self.answers + "{%- endif %}" + TURN + "{%- endfor %}"
                + "{%- if add_generation_prompt %}{{- '<|turn|>assistant\n' }}{%- endif %}")


WAYS = {
    "DeepSeek-R1": Way("{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}"),
    "DeepSeek-V3.1": Way("{%- if '</think>' in content %}{%- set content = content.split('</think>', 1)[1] %}"
                         "{%- endif %}"),
    "QwQ": Way("{%- if not loop.last %}{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"),
    "Qwen3": Way(f"{SPLIT}{{%- if loop.index0 > ns.last %}}{AGAIN}{{%- endif %}}", LAST_QUERY, fields=True),
    "GLM-4.6": Way(SPLIT.replace("m.content", "text_of(m.content)") + "{%- if loop.index0 > ns.last and thought %}"
                   "{%- set content = '<think>' + thought.strip() + '</think>' + content %}{%- else %}"
                   "{%- set content = '<think></think>' + content %}{%- endif %}", TEXT_OF + LAST_USER, fields=True,
                   empty="<think></think>"),
    "MiniMax-M2": Way("{%- set box = namespace(thought=m.reasoning_content or '', said=content) %}"
                      "{%- if '</think>' in content %}{%- for part in content.split('</think>') %}"
                      "{%- if loop.index0 == 0 -%}{%- set box.thought = part.split('<think>') | last %}{%- else %}"
                      "{%- set box.said = part.strip('\n') %}{%- endif %}{%- endfor %}{%- endif %}"
                      "{%- set content = box.said %}{%- if box.thought and loop.index0 > ns.last -%}"
                      "{%- set content = '<think>\n' ~ box.thought ~ '\n</think>\n\n' ~ content %}{%- endif %}",
                      LAST_USER, fields=True),
    "Nemotron Nano": Way("{%- if content and '</think>' in content -%}"
                         "{%- set content = (content.split('</think>')[1] | default('', true)).strip() %}{%- endif %}"),
    "Nemotron Super": Way("{%- if '</think>' in m.content -%}"
                          "{%- set content = m.content.split('</think>')[-1].lstrip() -%}{%- else -%}"
                          "{%- set content = m.content -%}{%- endif -%}"),
    "LFM2.5": Way("{%- if not (keep or loop.index0 > ns.last) %}{%- if '</think>' in content -%}"
                  "{%- set content = content.split('</think>')[-1] | trim %}{%- endif %}"
                  "{%- elif m.thinking is defined %}{%- set content = '<think>' + m.thinking + '</think>' + content %}"
                  "{%- endif %}", LAST_USER + "{%- set keep = keep | default(false) -%}", fields=True),
    "Kimi-K2": Way("{%- if loop.index0 > ns.last %}"
                   "{%- set content = '<think>' + (m.reasoning_content or '') + '</think>' + content %}{%- endif %}",
                   "{%- set ns = namespace(last=-1) -%}{%- for place in range(messages | length - 1, -1, -1) -%}"
                   "{%- if messages[place].role == 'assistant' and not messages[place].get('tool_calls') -%}"
                   "{%- set ns.last = place -%}{%- break -%}{%- endif -%}{%- endfor -%}", fields=True),
    "Gemma 4": Way("{%- set box = namespace(said='') -%}{%- for part in content.split('<channel|>') -%}"
                   "{%- set box.said = box.said + part.split('<|channel>')[0] -%}{%- endfor -%}"
                   "{%- set content = box.said | trim -%}", marks=("<|channel>", "<channel|>")),
    "Hunyuan": Way("{%- if '<answer>' in content and not loop.last %}"
                   "{%- set content = content.split('<answer>')[-1].split('</answer>')[0].strip() %}{%- endif %}"),
    "StepFun": Way(SPLIT.replace("m.content", "text_of(m.content)") + f"{{%- if loop.index0 > ns.last %}}{AGAIN}"
                   "{%- endif %}", TEXT_OF + LAST_QUERY, fields=True)}
"""By models whose templates have the way."""

MARKED = {name: way for name, way in WAYS.items() if name != "Kimi-K2"}
"""Kimi's knows thoughts in fields alone."""


def form_of(way: Way) -> ChatTemplate:
    """The template, with a tokenizer whose special tokens the marks are."""
    answer = ("<answer>", "</answer>") if "<answer>" in way.answers else ()
    return ChatTemplate(extended(ByteTokenizer(), [BEGIN, END, *way.marks, *answer]), way.source)


def talk(answer: str, **fields: Any) -> list[dict[str, Any]]:
    """An answer that has been followed by another question."""
    return [{"role": "user", "content": "What?"}, {"role": "assistant", "content": answer, **fields},
            {"role": "user", "content": "And?"}]


def expected(form: ChatTemplate, way: Way) -> list[int]:
    """The ids of the conversation without the thought."""
    turns = f"{BEGIN}user\nWhat?{END}", f"{BEGIN}assistant\n{way.empty}A cat.{END}", f"{BEGIN}user\nAnd?{END}"
    return form.tokenizer.encode("".join(turns) + f"{BEGIN}assistant\n", specials=True)


@pytest.mark.parametrize("name", MARKED)
def test_a_thought_between_marks_is_dropped(name: str) -> None:
    way = WAYS[name]
    form, (opens, closes) = form_of(way), way.marks
    said = "<answer>A cat.</answer>" if "<answer>" in way.answers else "A cat."
    kept = talk(f"{opens}hm {closes}{said}")
    assert form.encode(kept, add_generation_prompt=True) == expected(form, way)
    assert "hm" not in form.text(kept)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.fields])
def test_a_thought_in_a_field_is_dropped_and_that_of_the_open_turn_is_kept(name: str, field: str) -> None:
    """Whatever the field is called; behind the last question the thought stands between its marks."""
    way = WAYS[name]
    form = form_of(way)
    assert form.encode(talk("A cat.", **{field: "hm"}), add_generation_prompt=True) == expected(form, way)
    calls = [{"type": "function", "function": {"name": "look", "arguments": {}}}] if name == "Kimi-K2" else None
    now = [*talk("A cat."), {"role": "assistant", "content": "Two.", field: "so", "tool_calls": calls}]
    opens, closes = (form.tokenizer.special_tokens[mark] for mark in way.marks)
    tail = form.encode(now)[len(form.encode(now[:-1])):]
    assert form.text(now).count("so") == 1 and tail.count(opens) == tail.count(closes) == 1


def test_a_mark_that_a_question_spells_is_text_in_every_template() -> None:
    for name, way in WAYS.items():
        form = form_of(way)
        opens, closes = (form.tokenizer.special_tokens[mark] for mark in way.marks)
        ids = form.encode([{"role": "user", "content": f"{way.marks[0]}hm{way.marks[1]}What?"}])
        assert {opens, closes}.isdisjoint(ids), name
