"""Conversation styles for models without a template. None is chosen silently: the user names one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import final


@final
@dataclass(frozen=True)
class Style:
    """A style in which a conversation is rendered.

    Attributes:
        ends: what ends an answer besides the tokenizer's own ends: the spelling of a special token where the
            tokenizer has it, else a stop string.
    """

    template: str
    ends: tuple[str, ...] = ()


_PLAIN = """\
{{ bos_token or '' }}
{%- for message in messages %}
{% if message['role'] == 'system' %}
{{- message['content'] + '\n\n' }}
{%- elif message['role'] == 'user' %}
{{- 'User: ' + message['content'].strip() + '\n' }}
{%- elif message['role'] == 'assistant' %}
{{- 'Assistant: ' + message['content'].strip() + '\n' }}
{%- else %}
{{- raise_exception("the style 'plain' has the roles system, user and assistant, not " + message['role']) }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}
{{- 'Assistant:' }}
{%- endif %}"""

_CHATML = """\
{% for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}"""

_LLAMA2 = """\
{% set system = '' %}
{% set rest = messages %}
{% if messages[0]['role'] == 'system' %}
{% set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}
{% set rest = messages[1:] %}
{% endif %}
{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) or message['role'] not in ('user', 'assistant') %}
{{- raise_exception("the style 'llama2' needs user and assistant in turn, after at most one system message") }}
{% endif %}
{% if message['role'] == 'user' %}
{{- (bos_token or '') + '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' }}
{%- else %}
{{- ' ' + message['content'].strip() + ' ' + (eos_token or '') }}
{%- endif %}
{% endfor %}"""

STYLES: Mapping[str, Style] = MappingProxyType({"plain": Style(_PLAIN, ("\nUser:",)),
                                                "chatml": Style(_CHATML, ("<|im_end|>",)), "llama2": Style(_LLAMA2)})
"""``plain``: lines that begin with User: and Assistant:; ``chatml``: OpenAI's Chat Markup Language (2023);
``llama2``: Touvron et al. (2023), "Llama 2", appendix A.3.3, as Meta's released code writes it."""
