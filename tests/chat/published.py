"""Ten published chat templates, written anew and reduced to what decides which tokens are an answer's, each with a
tokenizer that has its special tokens, and what it writes of one conversation, cut by hand into what is scored and what
is not.

Kept are default system messages, trimming, the names of roles, what begins and ends a turn, and what is written behind
the last one. Left out are tools and error messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from weft.tokenizers import Conventions, FileTokenizer

SYSTEM = {"role": "system", "content": "Be brief."}
TALK = [{"role": "user", "content": " What is it? "}, {"role": "assistant", "content": "\n A cat. "},
        {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Two cats."}]
"""White space at the edges of a message: templates keep it or trim it."""


@dataclass(frozen=True)
class Published:
    """A template.

    Attributes:
        source: in Jinja.
        specials: special tokens, the one that opens a text first, the one that ends a text second.
        parts: what it writes of ``TALK``: not scored, scored, not scored, ...
        metaspace: whether words begin with a mark of white space (SentencePiece), or text is bytes.
        ends: special tokens besides the second that end a generation.
    """

    source: str
    specials: tuple[str, ...]
    parts: tuple[str, ...]
    metaspace: bool = False
    ends: tuple[str, ...] = ()


def chatml(default: str) -> str:
    """ChatML with a default system message."""
    return ("{% for m in messages %}{% if loop.first and m.role != 'system' %}{{ '<|im_start|>system\n" + default +
            "<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def chatml_parts(default: str) -> tuple[str, ...]:
    return (f"<|im_start|>system\n{default}<|im_end|>\n<|im_start|>user\n What is it? <|im_end|>\n"
            "<|im_start|>assistant\n", "\n A cat. <|im_end|>",
            "\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n", "Two cats.<|im_end|>", "\n")


QWEN, SMOL = "You are Qwen.", "You are a helpful AI assistant named SmolLM."
PUBLISHED: Mapping[str, Published] = {
    "Qwen2.5": Published(chatml(QWEN), ("<|endoftext|>", "<|im_end|>", "<|im_start|>"), chatml_parts(QWEN)),
    "SmolLM2": Published(chatml(SMOL), ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), chatml_parts(SMOL)),
    "Llama-2": Published(
        "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}", ("<s>", "</s>"),
        ("<s>[INST] What is it? [/INST]", " A cat. </s>", "<s>[INST] And now? [/INST]", " Two cats. </s>"), True),
    "Llama-3.1": Published(
        "{{- bos_token }}{{- '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: ' + strftime_now('%d %b %Y') + '\n\n' }}{%- if messages[0].role == 'system' %}"
        "{{- messages[0].content|trim }}{%- set messages = messages[1:] %}{%- endif %}{{- '<|eot_id|>' }}"
        "{%- for m in messages %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content|trim + "
        "'<|eot_id|>' }}{%- endfor %}{%- if add_generation_prompt %}"
        "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}",
        ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
        ("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
         "Today Date: 01 Jan 2025\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWhat is it?<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n", "A cat.<|eot_id|>",
         "<|start_header_id|>user<|end_header_id|>\n\nAnd now?<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n", "Two cats.<|eot_id|>")),
    "Mistral": Published(
        "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'user' %}{{- '[INST] ' + m.content + '[/INST]' }}"
        "{%- else %}{{- ' ' + m.content|trim + eos_token }}{%- endif %}{%- endfor %}",
        ("<s>", "</s>", "[INST]", "[/INST]"),
        ("<s>[INST]  What is it? [/INST]", " A cat.</s>", "[INST] And now?[/INST]", " Two cats.</s>"), True),
    "Gemma": Published(
        "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + "
        "'\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        ("<bos><start_of_turn>user\nWhat is it?<end_of_turn>\n<start_of_turn>model\n", "A cat.<end_of_turn>",
         "\n<start_of_turn>user\nAnd now?<end_of_turn>\n<start_of_turn>model\n", "Two cats.<end_of_turn>", "\n"), True),
    "Phi-3": Published(
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
        ("<s>", "<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>"),
        ("<|user|>\n What is it? <|end|>\n<|assistant|>\n", "\n A cat. <|end|>",
         "\n<|user|>\nAnd now?<|end|>\n<|assistant|>\n", "Two cats.<|end|>", "\n<|endoftext|>"), True, ("<|end|>",)),
    "Zephyr": Published(
        "{% for m in messages %}\n{% if m.role == 'user' %}\n{{ '<|user|>\n' + m.content + eos_token }}\n"
        "{% elif m.role == 'assistant' %}\n{{ '<|assistant|>\n'  + m.content + eos_token }}\n{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
        ("<s>", "</s>"),
        ("<|user|>\n What is it? </s>\n<|assistant|>\n", "\n A cat. </s>",
         "\n<|user|>\nAnd now?</s>\n<|assistant|>\n", "Two cats.</s>", "\n"), True),
    "Vicuna": Published(
        "{{ 'A chat. ' }}{% for m in messages %}{% if m.role == 'user' %}{{ 'USER: ' + m.content.strip() + ' ' }}"
        "{% else %}{{ 'ASSISTANT: ' + m.content.strip() + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}", ("<s>", "</s>"),
        ("A chat. USER: What is it? ASSISTANT:", " A cat.</s>", "USER: And now? ASSISTANT:", " Two cats.</s>"), True),
    "DeepSeek": Published(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}"
        "{% elif m.role == 'assistant' %}{{ '<｜Assistant｜>' + m.content + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}",
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        ("<｜begin▁of▁sentence｜><｜User｜> What is it? <｜Assistant｜>", "\n A cat. <｜end▁of▁sentence｜>",
         "<｜User｜>And now?<｜Assistant｜>", "Two cats.<｜end▁of▁sentence｜>")),
}
"""Zephyr asks for an answer with ``<|assistant|>`` and a line end, which its last line writes."""

THINKING = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
            "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
            "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
"""Drops the thoughts of every answer but the last, as Qwen3 and DeepSeek-R1 do."""


WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Llama 3 and Qwen2.5 divide text before merges, shortened: line ends stay together."""


@cache
def tokenizer_of(name: str) -> FileTokenizer:
    """A small tokenizer with the special tokens of a template, which some merges make longer than characters."""
    published = PUBLISHED[name]
    found = tokenizers.Tokenizer(models.BPE(byte_fallback=published.metaspace, unk_token=None))
    if published.metaspace:
        found.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        found.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
        alphabet = [*(f"<0x{byte:02X}>" for byte in range(256))]
    else:
        found.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        found.decoder = decoders.ByteLevel()
        alphabet = []
    texts = [" What is it? A cat. And now? Two cats. ", "" if published.metaspace else ".\n\n",
             "USER: user\n assistant\n ASSISTANT: system Today A chat."]
    found.train_from_iterator(texts * 3, trainers.BpeTrainer(
        vocab_size=700, min_frequency=2, special_tokens=alphabet, show_progress=False,
        initial_alphabet=[] if published.metaspace else pre_tokenizers.ByteLevel.alphabet()))
    found.add_special_tokens(list(published.specials))
    ids = tuple(found.token_to_id(end) for end in published.ends)
    return FileTokenizer(_plain_alphabet(found), bos=published.specials[0], eos=published.specials[1],
                         conventions=Conventions(chat_templates={"default": published.source}, end_ids=ids))


def _plain_alphabet(found: tokenizers.Tokenizer) -> str:
    """The file of a tokenizer whose tokens for bytes are ordinary ones, as in published files."""
    held = json.loads(found.to_str())
    held["added_tokens"] = [token for token in held["added_tokens"] if not token["content"].startswith("<0x")]
    return json.dumps(held)
