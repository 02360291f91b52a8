"""The task of answering: which tokens a batch scores, its loss by hand, packed conversations, and its model in use."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.talks import DECODER, END, TALKS, model_of, naive, run_fields, written
from tasks.task_runs import ENCODER, records_file, settings
from training.test_resume import run_killed_at
from training.tiny_runs import same_weights
from weft.api import ChatSettings, Conversation, data_prepare, load, measure
from weft.chat.template import style
from weft.core.errors import ConfigError, DataError, InputError
from weft.core.model import parse_model
from weft.data import TokenStream
from weft.data.packed import PackedBatches
from weft.data.settings import DataSettings
from weft.decoding import GREEDY
from weft.tasks.instructions import Answers, AnswersConfig
from weft.tokenizers import ByteTokenizer, load_tokenizer
from weft.tokenizers.config import ByteTokenizerConfig, TokenizerConfig
from weft.training import parse_run, train
from weft.training.gradient import add_gradients


def task(config: AnswersConfig | None = None, **values: Any) -> Answers:
    return Answers(config or AnswersConfig(template="llama2"), settings(**{"context": 64, **values}))


def material(folder: Path, made: Answers, rows: list[dict[str, Any]] = TALKS,
             tokenizer: TokenizerConfig | None = None) -> Any:
    data = DataSettings(path=str(records_file(folder, rows)), validation=0.2)
    return made.material(data, tokenizer or ByteTokenizerConfig())


def documents(stream: TokenStream) -> list[tuple[list[int], list[bool]]]:
    """The tokens of each conversation, and which are scored."""
    borders = [*np.flatnonzero(stream.begins).tolist(), len(stream)]
    return [(stream.tokens[first:last].tolist(), stream.scored(slice(first, last)).tolist())
            for first, last in pairwise(borders)]


def test_a_stream_holds_every_conversation_with_its_answers_scored(tmp_path: Path) -> None:
    found = material(tmp_path, task())
    held = documents(found.train) + documents(found.validation)
    assert sorted(held) == sorted(written(talk) for talk in TALKS)
    scored = found.train.scored(slice(None))
    assert found.train.byte_lengths[scored].sum() == sum(sum(flags) - ids.count(END) // 2
                                                         for ids, flags in documents(found.train))


@pytest.mark.parametrize("packing", ["stream", "documents"])
def test_the_loss_and_its_gradients_are_those_of_each_conversation_alone(tmp_path: Path, packing: str) -> None:
    """Several conversations in a row do not see one another."""
    made, model = task(packing=packing, rows=3, context=128), model_of()
    batches = made.batches(material(tmp_path, made).train)
    batch = batches.text.batch(0)
    assert (batch.begins.sum() > 3) == (packing == "documents")
    sums, _ = add_gradients(made, model, [batches.batch(0)], None, device="cpu")
    together = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    held = {tuple(written(talk)[0]): talk for talk in TALKS}
    count, nats = 0, torch.zeros((), dtype=torch.float64)
    for row, inputs in enumerate(batch.inputs):
        length = len(inputs) if batch.count is None else int(batch.count[row])
        starts = [*np.flatnonzero(batch.begins[row]).tolist(), length]
        for first, last in pairwise(starts):
            ids = (*inputs[first:last].tolist(), int(batch.targets[row, last - 1]))
            nats, count = nats - naive(model, held[ids]), count + sum(written(held[ids])[1])
    (nats / count).backward()  # type: ignore[no-untyped-call]
    assert sums.tokens == count and sums.nats == pytest.approx(nats.item(), rel=1e-12)
    alone = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_the_last_answer_alone_is_scored_where_that_is_asked_for(tmp_path: Path) -> None:
    found = documents(material(tmp_path, task(AnswersConfig(template="llama2", scored="last"))).train)
    for ids, scored in found:
        last = "".join(map(chr, ids)).rfind("[/INST]") + len("[/INST]")
        assert not any(scored[:last]) and all(scored[last:])


def test_a_batch_has_whole_conversations_each_once_an_epoch_and_ranks_share_it(tmp_path: Path) -> None:
    made = task()
    train_ = material(tmp_path, made).train
    batches = made.batches(train_).text
    assert isinstance(batches, PackedBatches) and batches.windows == len(documents(train_))
    batch = batches.batch(0)
    halves = [batches.batch(0, rank=rank, world=2) for rank in range(2)]
    assert (np.concatenate([half.inputs for half in halves]) == batch.inputs).all()
    assert {batches.batch(step).inputs.shape[1] for step in range(20)} <= {-(-batches._lengths.max() * q // 4)
                                                                          for q in (1, 2, 3, 4)}
    seen = sorted(int(place) for step in range(batches.windows) for place in batches.batch(step).places[:, 0])
    assert seen == sorted([*batches._starts.tolist()] * 4)


LONG = [*TALKS[:20], {"messages": [{"role": "user", "content": "x" * 80}, {"role": "assistant", "content": "y"}]},
        {"messages": [{"role": "user", "content": "z"}, {"role": "assistant", "content": "y" * 90}]}]


@pytest.mark.parametrize(("rule", "kept", "line"), [("drop", 20, "2 longer than a window left out"),
                                                    ("cut", 21, "2 longer than a window cut at their ends")])
def test_longer_conversations_are_left_out_or_cut_and_counted(tmp_path: Path, rule: Any, kept: int, line: str) -> None:
    """Of a conversation that is cut before its answer nothing is left to learn."""
    data = DataSettings(path=str(records_file(tmp_path, LONG)), validation_path=str(
        records_file(tmp_path, TALKS[:3], "held.jsonl")), validation=None)
    made = task(AnswersConfig(template="llama2", too_long=rule))
    batches = made.batches(made.material(data, ByteTokenizerConfig()).train).text
    assert isinstance(batches, PackedBatches) and batches.windows == kept
    assert line in batches.notice and "22 documents" in batches.notice
    assert all((batches.of(np.array([row])).scored_tokens > 0) for row in range(kept))
    with pytest.raises(DataError, match=r"nothing is left to train on: 22 of 22 documents are longer than 4 tokens\. "
                                        r".*training\.context"):
        task(AnswersConfig(template="llama2"), context=4).batches(made.material(data, ByteTokenizerConfig()).train)


def test_measures_are_those_by_hand(tmp_path: Path) -> None:
    made, model = task(), model_of()
    held = material(tmp_path, made).validation
    found = made.measure(model, held)
    talks = [talk for talk in TALKS if written(talk) in documents(held)]
    nats = -sum(naive(model, talk).item() for talk in talks)
    tokens = sum(sum(written(talk)[1]) for talk in talks)
    size = sum(sum(flag and token != END for token, flag in zip(*written(talk), strict=True)) for talk in talks)
    assert (found.tokens, found.bytes) == (tokens, size)
    assert found.loss == pytest.approx(nats / tokens, rel=1e-12)
    assert found.bits_per_byte == pytest.approx(nats / np.log(2) / size, rel=1e-12)
    assert found.measures["perplexity"] == pytest.approx(np.exp(nats / tokens), rel=1e-12)


def test_a_run_goes_on_bit_for_bit_and_its_model_chats(tmp_path: Path) -> None:
    """The template and what ends an answer travel with the checkpoint."""
    run = parse_run(run_fields(tmp_path, {"kind": "answers", "template": "llama2"}, TALKS))
    whole = train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "halves", 4)
    halves = train(run, tmp_path / "halves", resume=True)
    assert same_weights(whole.model, halves.model) and whole.validation == halves.validation
    loaded = load(tmp_path / "whole")
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.conventions.chat_templates == {"default": style("llama2")}
    with torch.no_grad():  # a model that writes one letter, and then ends its answer
        bias = torch.zeros(257)
        bias[END] = 100.0
    loaded.model.readout.logits = lambda h: bias.expand(*h.shape[:-1], 257)  # type: ignore[attr-defined, union-attr]
    conversation = Conversation(loaded.model, loaded.tokenizer, ChatSettings(sampling=GREEDY))
    assert "".join(conversation.say("Hi")) == "" and conversation.last is not None
    assert conversation.last.finish == "stop_token" and conversation.last.prompt_tokens == 18
    assert measure(tmp_path / "whole").measures["perplexity"] > 1


def test_texts_that_end_answers_travel_too(tmp_path: Path) -> None:
    found = material(tmp_path, task(AnswersConfig(template="chatml")))
    assert found.tokenizer.conventions.stops == ("<|im_end|>",)
    found.tokenizer.save(tmp_path / "saved")
    read = load_tokenizer(tmp_path / "saved")
    assert read.conventions == found.tokenizer.conventions and read.fingerprint() == ByteTokenizer().fingerprint()


def test_another_template_is_other_data(tmp_path: Path) -> None:
    one, other = (material(tmp_path, task(AnswersConfig(template=name))) for name in ("llama2", "chatml"))
    assert one.corpus_sha256 != other.corpus_sha256 and one.corpus == other.corpus


@pytest.mark.parametrize(("fields", "data", "message"), [
    ({"template": "plain"}, {}, r"rows\.jsonl, line \d+: chat template 'plain': the template writes no token that"),
    ({"template": "llama2"}, {"text_field": "body"}, r"data\.text_field: 'body', while conversations have fields"),
    ({"template": "llama2", "shape": "alpaca"}, {}, r"rows\.jsonl, line 1: no field 'instruction'"),
])
def test_what_cannot_be_used_is_said(tmp_path: Path, fields: dict[str, Any], data: dict[str, Any],
                                     message: str) -> None:
    settings_ = DataSettings(path=str(records_file(tmp_path, TALKS)), validation=0.2, **data)
    with pytest.raises((DataError, ConfigError), match=message):
        task(AnswersConfig(**fields)).material(settings_, ByteTokenizerConfig())


def test_a_tokenizer_without_a_template_needs_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the model has no chat template"):
        material(tmp_path, task(AnswersConfig()))
    with pytest.raises(DataError, match=r"data\.path: this task reads conversations, and there is no path"):
        task().material(DataSettings(), ByteTokenizerConfig())


@pytest.mark.parametrize(("model", "message"), [
    (ENCODER, "a model of kind 'encoder' is not a language model"),
    ({"kind": "ngram", "order": 2}, "is fitted by counting, and counts every token"),
])
def test_a_model_that_does_not_fit_is_refused(model: dict[str, Any], message: str) -> None:
    found = task(context=8).problems(parse_model({**model, "vocab_size": 257}).build(None))
    assert len(found) == 1 and message in found[0]


def test_templates_that_write_the_day_give_the_same_tokens_on_every_day(tmp_path: Path) -> None:
    source = style("llama2").replace("'[INST] '", "strftime_now('%Y-%m-%d') + '[INST] '")
    (tmp_path / "day.jinja").write_text(source)
    ids, _ = documents(material(tmp_path, task(AnswersConfig(template=str(tmp_path / "day.jinja")))).train)[0]
    assert bytes(ids[1:11]) == b"2025-01-01"


def test_variables_reach_the_template(tmp_path: Path) -> None:
    (tmp_path / "mood.jinja").write_text("{{ mood }}" + style("llama2"))
    config = AnswersConfig(template=str(tmp_path / "mood.jinja"), variables={"mood": "!"})
    ids, _ = documents(material(tmp_path, task(config)).train)[0]
    assert chr(ids[0]) == "!"
    assert json.loads(json.dumps(config.dump()))["variables"] == {"mood": "!"} and DECODER["vocab_size"] == 257


def test_prepared_conversations_are_shards_with_flags(tmp_path: Path) -> None:
    """They give the stream of the files, and carry the template with their tokenizer."""
    path = records_file(tmp_path, TALKS)
    (tmp_path / "run.json").write_text(json.dumps({
        "task": {"kind": "answers", "template": "llama2"}, "data": {"path": str(path), "validation": 0.2}}))
    prepared = data_prepare(tmp_path / "run.json", out=tmp_path / "prepared")
    assert data_prepare(tmp_path / "run.json", out=tmp_path / "prepared").reused
    data = DataSettings(path=str(tmp_path / "prepared"))
    made = task(AnswersConfig())
    found, wanted = made.material(data, ByteTokenizerConfig()), material(tmp_path, task())
    for one, other in ((found.train, wanted.train), (found.validation, wanted.validation)):
        assert documents(one) == documents(other) and not one.begins_scored
        assert (one.byte_lengths[slice(None)] == other.byte_lengths).all()
    assert prepared.data.manifest.parts["train"].scored_tokens == wanted.train.scored(slice(None)).sum()
    assert found.tokenizer.conventions == wanted.tokenizer.conventions
    held = made.held_out(data, found.tokenizer)
    assert documents(held) == documents(found.validation)
    with pytest.raises(ConfigError, match=r"task\.template: 'chatml', while .* was prepared with 'llama2'"):
        task(AnswersConfig(template="chatml")).material(data, ByteTokenizerConfig())
    with pytest.raises(DataError, match="other data have been prepared there: task was"):
        data_prepare(tmp_path / "run.json", ["task.scored=last"], out=tmp_path / "prepared")


def test_prepared_text_is_no_conversation(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a line of text\n" * 200)
    data_prepare(tmp_path / "text.txt", out=tmp_path / "prepared")
    with pytest.raises(DataError, match="holds running text, while the task 'answers' reads conversations"):
        task().material(DataSettings(path=str(tmp_path / "prepared")), ByteTokenizerConfig())
