"""Conversations: the state that is kept gives what the whole text, read anew, gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from decoding.small_models import DYNAMIC, LONGROPE, MLP, ROPE, VOCAB, Bigram, decoder
from weft.chat.conversation import ChatSettings, Conversation
from weft.chat.template import ChatTemplate
from weft.core.errors import FailedError, InputError
from weft.core.model import LanguageModel
from weft.decoding import GREEDY, Row, generate
from weft.decoding.generate import Ending
from weft.tokenizers import CharacterTokenizer, Tokenizer

TURNS = "{% for m in messages %}{{ '(' ~ m.content ~ ')' }}{% endfor %}{% if add_generation_prompt %}({% endif %}"
"""What was said stands in brackets; an answer is begun by one."""

FORGETFUL = ("{% for m in messages %}{% if m.role == 'user' or loop.last %}{{ '(' ~ m.content ~ ')' }}{% else %}()"
             "{% endif %}{% endfor %}{% if add_generation_prompt %}(ab{% endif %}")
"""Writes earlier answers as empty, as templates drop earlier thoughts, and opens one otherwise than it keeps it."""

MODELS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "attention": ([ROPE, MLP], {}),
    "window": ([{**ROPE, "mask": "causal & window(4)", "n_kv_heads": 1}, MLP], {}),
    "learned": ([{"kind": "attention", "n_heads": 2}, MLP], {"position": {"kind": "learned", "std": 1.0}}),
    "lstm": (["lstm"], {}),
    "s4d": ([{"kind": "s4d"}, MLP], {}),
    "longrope": ([{**ROPE, "position": LONGROPE}, MLP], {}),
    "dynamic": ([{**ROPE, "position": DYNAMIC}, MLP], {}),
}


@pytest.fixture
def tokenizer() -> CharacterTokenizer:
    """A character for each id of the small models but the last, which ends a text."""
    found = CharacterTokenizer.train(["abcdefgh()"])
    assert found.vocab_size == VOCAB
    return found


@pytest.fixture
def template(tmp_path: Any) -> Any:
    """Writes a template into a file."""
    def write(source: str) -> str:
        (tmp_path / "chat.jinja").write_text(source, "utf-8")
        return str(tmp_path / "chat.jinja")

    return write


def model_of(name: str) -> LanguageModel:
    """One of `MODELS`."""
    layers, options = MODELS[name]
    return decoder(*layers, **options)


class Reads:
    """Counts the tokens that a model reads."""

    def __init__(self, model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self._hidden = 0, model.hidden
        monkeypatch.setattr(model, "hidden", self._counted)

    def _counted(self, tokens: Tensor, *rest: Any) -> Any:
        self.count += tokens.shape[1]
        return self._hidden(tokens, *rest)


def said_anew(model: LanguageModel, tokenizer: Tokenizer, source: str, messages: Sequence[dict[str, Any]],
              new: int) -> tuple[int, ...]:
    """The answer to the messages, computed from their text alone."""
    form = ChatTemplate(tokenizer, source)
    row = Row(tuple(form.encode(messages, add_generation_prompt=True)))
    found = generate(model, [row], max_new_tokens=new, sampling=GREEDY, ending=Ending(form.end_ids),
                     tokenizer=tokenizer)
    return found.rows[0].tokens


@pytest.mark.parametrize("source", [TURNS, FORGETFUL], ids=["turns", "forgetful"])
@pytest.mark.parametrize("name", MODELS)
def test_the_kept_state_gives_what_the_text_read_anew_gives(name: str, source: str, tokenizer: CharacterTokenizer,
                                                            template: Any) -> None:
    model = model_of(name)
    settings = ChatSettings(template=template(source), max_new_tokens=4, sampling=GREEDY)
    conversation = Conversation(model, tokenizer, settings)
    for text in ("a", "bc", "h", "defg"):
        asked = [*conversation.messages, {"role": "user", "content": text}]
        answer = "".join(conversation.say(text))
        assert conversation.last is not None and conversation.last.text == answer
        assert conversation.last.tokens == said_anew(model, tokenizer, source, asked, 4)
        assert conversation.messages == [*asked, {"role": "assistant", "content": answer}]


@pytest.mark.parametrize("name", ["attention", "lstm", "s4d"])
def test_only_what_is_new_is_read(name: str, tokenizer: CharacterTokenizer, template: Any,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(name)
    settings = ChatSettings(template=template(TURNS), max_new_tokens=5, sampling=GREEDY, stops=(")",))
    conversation = Conversation(model, tokenizer, settings)
    reads = Reads(model, monkeypatch)
    "".join(conversation.say("abc"))
    first = conversation.last
    assert first is not None and first.reused_tokens == 0 and first.prompt_tokens == len("(abc)(")
    assert reads.count == first.prompt_tokens + len(first.tokens) - 1
    before = reads.count
    "".join(conversation.say("de"))
    second = conversation.last
    assert second is not None
    # All but the answer's last token has been read, so the second turn reads that, what closes it, and what is new.
    assert second.reused_tokens == first.prompt_tokens + len(first.tokens) - 1
    assert reads.count - before == second.prompt_tokens - second.reused_tokens + len(second.tokens) - 1


def test_a_template_that_rewrites_answers_goes_on_from_before_them(tokenizer: CharacterTokenizer,
                                                                   template: Any) -> None:
    settings = ChatSettings(template=template(FORGETFUL), max_new_tokens=3, sampling=GREEDY)
    conversation = Conversation(model_of("lstm"), tokenizer, settings)
    "".join(conversation.say("abc"))
    "".join(conversation.say("d"))
    # "(abc)(": the answer opens with "(ab" and is kept as "()", so one more bracket is common to both.
    assert conversation.last is not None and conversation.last.reused_tokens == len("(abc)")


def test_undo_and_reset_take_back_what_was_said(tokenizer: CharacterTokenizer, template: Any) -> None:
    model = model_of("s4d")
    settings = ChatSettings(template=template(TURNS), max_new_tokens=3, sampling=GREEDY)
    conversation = Conversation(model, tokenizer, settings, [{"role": "system", "content": "h"}])
    first = "".join(conversation.say("a"))
    "".join(conversation.say("b"))
    assert conversation.undo()
    assert [message["content"] for message in conversation.messages] == ["h", "a", first]
    second = "".join(conversation.say("cd"))
    fresh = Conversation(model, tokenizer, settings, conversation.messages[:3])
    assert "".join(fresh.say("cd")) == second
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "h"}] and not conversation.undo()
    assert "".join(conversation.say("a")) == first
    conversation.set_system(None)
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]


def test_an_answer_that_is_stopped_is_kept_as_far_as_it_came(tokenizer: CharacterTokenizer, template: Any) -> None:
    model = model_of("attention")
    settings = ChatSettings(template=template(TURNS), max_new_tokens=9, sampling=GREEDY)
    conversation = Conversation(model, tokenizer, settings)
    pieces = conversation.say("a")
    begun = next(pieces) + next(pieces)
    conversation.stop()
    assert conversation.last is not None and conversation.last.finish == "interrupted"
    assert conversation.messages[-1] == {"role": "assistant", "content": begun}
    asked = [*conversation.messages, {"role": "user", "content": "b"}]
    "".join(conversation.say("b"))
    assert conversation.last.tokens == said_anew(model, tokenizer, TURNS, asked, 9)


def test_a_stopped_string_ends_the_answer_and_is_no_part_of_it(tokenizer: CharacterTokenizer, template: Any) -> None:
    model = model_of("attention")
    plain = Conversation(model, tokenizer, ChatSettings(template=template(TURNS), max_new_tokens=6, sampling=GREEDY))
    whole = "".join(plain.say("a"))
    stop = whole[2:4]
    settings = ChatSettings(template=template(TURNS), max_new_tokens=6, sampling=GREEDY, stops=(stop,))
    conversation = Conversation(model, tokenizer, settings)
    assert "".join(conversation.say("a")) == whole[: whole.index(stop)]
    assert conversation.last is not None and conversation.last.finish == "stop_string"


def test_an_answer_ends_at_the_tokenizers_end(tokenizer: CharacterTokenizer, template: Any) -> None:
    a, = tokenizer.encode("a")
    assert tokenizer.eos_id is not None
    likely = {a: tokenizer.eos_id}
    model = Bigram([[0.9 if token == likely.get(last, a) else 0.01 for token in range(VOCAB)]
                    for last in range(VOCAB)])
    conversation = Conversation(model, tokenizer, ChatSettings(template=template(TURNS), sampling=GREEDY))
    assert list(conversation.say("b")) == ["a", ""]
    assert conversation.last is not None and conversation.last.finish == "stop_token"
    assert conversation.last.tokens == (a, tokenizer.eos_id)


def test_turns_draw_with_numbers_of_their_own_and_a_seed_repeats_them(tokenizer: CharacterTokenizer,
                                                                      template: Any) -> None:
    def talk(seed: int) -> list[str]:
        settings = ChatSettings(template=template("{{ messages[-1].content }}"), max_new_tokens=20, seed=seed)
        conversation = Conversation(model_of("lstm"), tokenizer, settings)
        return ["".join(conversation.say("a")) for _ in range(2)]

    assert talk(1) == talk(1) != talk(2)
    first, second = talk(3)
    assert first != second


def test_a_conversation_longer_than_the_model_is_refused_and_changes_nothing(tokenizer: CharacterTokenizer,
                                                                             template: Any) -> None:
    settings = ChatSettings(template=template(TURNS), max_new_tokens=50, sampling=GREEDY)
    conversation = Conversation(model_of("learned"), tokenizer, settings)
    "".join(conversation.say("a" * 58))
    assert conversation.last is not None
    # 61 tokens are read before the answer; its last token need not be.
    assert (len(conversation.last.tokens), conversation.last.finish) == (4, "length")
    before = conversation.messages
    with pytest.raises(InputError, match=r"conversation: it has \d+ tokens, .* positions for 64\. .*/undo"):
        conversation.say("b" * 40)
    assert conversation.messages == before


def test_a_failing_answer_is_no_part_of_the_conversation(tokenizer: CharacterTokenizer, template: Any) -> None:
    model = model_of("attention")
    conversation = Conversation(model, tokenizer, ChatSettings(template=template(TURNS), max_new_tokens=3))
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(FailedError, match="logit of nan"):
        list(conversation.say("a"))
    assert conversation.messages == []


def test_settings_that_cannot_be_used_are_refused(tokenizer: CharacterTokenizer, template: Any) -> None:
    with pytest.raises(InputError, match=r"max_new_tokens: 0 new tokens\. Give 1 or more"):
        Conversation(model_of("lstm"), tokenizer, ChatSettings(template="plain", max_new_tokens=0))
    with pytest.raises(InputError, match="no chat template, so the format of the conversations it"):
        Conversation(model_of("lstm"), tokenizer)
