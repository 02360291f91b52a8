"""Masks of answers beside those that transformers makes from the templates that trl ships for training.

trl's templates mark with ``{% generation %}`` what is scored, and mark more than a model has to produce: the white
space behind the end of an answer, and what is given with the request for an answer.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest
import tokenizers
import transformers
import trl
from tokenizers import decoders, models, pre_tokenizers

from weft.chat.answers import AnswerMarker
from weft.chat.template import ChatTemplate, Extras
from weft.core.errors import InputError
from weft.tokenizers import FileTokenizer

SOURCES = Path(trl.__file__).parent / "chat_templates"
TALK = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Two cats."}]
SPECIAL = re.compile(r"<[|｜][^<>\s]{1,30}[|｜]>|<(?:start|end)_of_turn>|<bos>|<eos>|</?s>")
EXACT = ["llama3", "cohere", "cohere2", "gemma", "phi3", "phi3_5", "qwen2_5", "qwen3_instruct_2507", "gemma3", "lfm2"]
"""Templates whose answers are found by prefixes."""


def both(source: str) -> tuple[FileTokenizer, transformers.PreTrainedTokenizerFast]:
    """A tokenizer of bytes with the special tokens that a template spells, in both libraries."""
    specials = list(dict.fromkeys([*SPECIAL.findall(source), "<bos>", "<eos>"]))
    found = tokenizers.Tokenizer(models.BPE(
        {char: place for place, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens(specials)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=found, bos_token="<bos>", eos_token="<eos>")
    return FileTokenizer(found.to_str(), bos="<bos>", eos="<eos>"), theirs


def theirs_of(name: str) -> tuple[list[int], list[int], str]:
    """Ids and mask by transformers, and the template."""
    source = (SOURCES / f"{name}_training.jinja").read_text("utf-8")
    found = both(source)[1].apply_chat_template(TALK, chat_template=source, tokenize=True, return_dict=True,
                                                return_assistant_tokens_mask=True)
    return found["input_ids"], found["assistant_masks"], source


IMAGES = ("diffusion_gemma", "idefics3", "llava_next")
"""Templates of models of images, whose special tokens have other spellings or whose messages are no texts."""
NAMES = sorted({path.stem.removesuffix("_training") for path in SOURCES.glob("*_training.jinja")} - set(IMAGES))


@pytest.mark.parametrize("name", [name for name in NAMES if "vl" not in name and "muse" not in name])
def test_what_a_template_declares_is_scored_but_for_what_follows_the_end(name: str) -> None:
    ids, mask, source = theirs_of(name)
    tokenizer, _ = both(source)
    found = AnswerMarker(ChatTemplate(tokenizer, source), extras=Extras(now=datetime.now())).mark(TALK)
    assert found.ids.tolist() == ids
    more = [token for token, own, other in zip(ids, found.scored.tolist(), mask, strict=True) if other and not own]
    assert not any(own and not other for own, other in zip(found.scored.tolist(), mask, strict=True))
    assert not tokenizer.decode(more, specials=True).strip(), "white space alone is left out"


@pytest.mark.parametrize("name", EXACT)
def test_prefixes_find_what_is_declared_but_for_the_edges(name: str) -> None:
    ids, mask, training = theirs_of(name)
    source = (SOURCES / f"{name}.jinja").read_text("utf-8")
    tokenizer, _ = both(training)
    found = AnswerMarker(ChatTemplate(tokenizer, source), extras=Extras(now=datetime.now())).mark(TALK)
    assert found.ids.tolist() == ids
    own = tokenizer.decode(found.ids[found.scored], specials=True)
    declared = tokenizer.decode([token for token, each in zip(ids, mask, strict=True) if each], specials=True)
    assert "A cat." in own and "Two cats." in own
    assert "".join(SPECIAL.sub("", declared).split()) == "".join(SPECIAL.sub("", own).split())
    assert not any(mine and not other for mine, other in zip(found.scored.tolist(), mask, strict=True))


@pytest.mark.parametrize("name", ["deepseek_r1_distill", "qwen3"])
def test_templates_of_thoughts_are_refused_by_name(name: str) -> None:
    source = (SOURCES / f"{name}.jinja").read_text("utf-8")
    marker = AnswerMarker(ChatTemplate(both(source)[0], source))
    with pytest.raises(InputError, match=r"the template writes .* otherwise .*scored: last"):
        marker.mark(TALK)
