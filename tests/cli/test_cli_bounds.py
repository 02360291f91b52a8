"""What a document or an option asks for is bounded before it is built: one message, exit code 2, no traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from weft.core.config import parse
from weft.core.errors import ConfigError, InputError
from weft.core.model import built_model, parse_model
from weft.core.part_config import MOST_BLOCKS, Settings
from weft.core.process_settings import ALWAYS, EACH, require_threads
from weft.training.files import parse_run

Refuse = Callable[..., str]
PRE = "{kind: pre, layers: [mlp]}"
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 16,
         "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32,
         "rms_norm_eps": 1e-5, "hidden_act": "silu"}


@pytest.mark.parametrize("blocks", [
    f"[{{repeat: 1000000000, of: [{PRE}]}}]",
    f"[{{repeat: 100, of: [{{repeat: 10000000, of: [{PRE}]}}]}}]",
])
def test_a_billion_blocks(refused: Refuse, blocks: str) -> None:
    message = refused("plan", "transformer", f"model.blocks={blocks}")
    assert f"model.blocks: 1,000,000,000 blocks, and a model has at most {MOST_BLOCKS:,}." in message


@pytest.mark.parametrize(("key", "value", "what"), [
    ("num_hidden_layers", 10**5, "num_hidden_layers: 100,000 layers, and a model has at most 10,000."),
    ("num_hidden_layers", True, "num_hidden_layers: True is not a whole number."),
    ("vocab_size", 10**30, "vocab_size: whole numbers are at most 9,223,372,036,854,775,807 (64 bits)"),
    ("vocab_size", 9 * 10**18, "model: its tensors are larger than memory can hold ("),
])
def test_a_foreign_configuration(refused: Refuse, tmp_path: Path, key: str, value: int, what: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, key: value}), encoding="utf-8")
    assert what in refused("plan", tmp_path)


def test_a_foreign_configuration_nested_deeply(refused: Refuse, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ' + "[" * 100 + "]" * 100 + "}",
                                          encoding="utf-8")
    assert "lists or mappings nested more than 64 deep" in refused("plan", tmp_path)


def test_a_vocabulary_beyond_the_memory(refused: Refuse, workplace: Path, tmp_path: Path) -> None:
    message = refused("train", workplace / "tiny.yaml", "model.vocab_size=1000000000000", "--out", tmp_path / "run")
    assert "parameters take" in message and "GB with their gradients, and this machine has" in message
    assert not (tmp_path / "run").exists()


def test_a_context_that_no_plan_ends_with(refused: Refuse) -> None:
    message = refused("plan", "lstm", "--context", "1000000000000")
    assert "context: 1,000,000,000,000 tokens, and at most 16,777,216 are planned. Give fewer" in message
    assert "context: 1,000,000,000,000 tokens, and at most" in refused("plan", "lstm", "model.context=1000000000000")


@pytest.mark.parametrize("command", ["check", "train"])
def test_a_window_beyond_the_memory(refused: Refuse, tmp_path: Path, command: str) -> None:
    """The state of every channel, which no smaller model of the same kind leaves out."""
    file = tmp_path / "wide.yaml"
    file.write_text("model: {kind: decoder, vocab_size: 257, d_model: 16, context: 32, blocks: [{kind: pre, layers: "
                    "[{kind: mamba, d_state: 1000000000000}]}]}", encoding="utf-8")
    message = refused(command, file, *(("--out", tmp_path / "run") if command == "train" else ()))
    assert "GB with their gradients, and this machine has" in message and "x 32. Make the" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["check", "plan", "train"])
@pytest.mark.parametrize("mixer", ["mamba", "mamba2", "rg_lru", "gated_convolution", "{kind: kimi_delta, n_heads: 1}"])
def test_a_convolution_of_more_taps_than_are_gone_through(refused: Refuse, tmp_path: Path, command: str,
                                                          mixer: str) -> None:
    """`weft plan` went through them one by one, without end."""
    given = mixer.strip("{}") if mixer.startswith("{") else f"kind: {mixer}"
    file = tmp_path / "wide.yaml"
    file.write_text("model: {kind: decoder, vocab_size: 257, d_model: 16, context: 32, blocks: [{kind: pre, layers: "
                    f"[{{{given}, d_conv: 1000000000000}}]}}]}}", encoding="utf-8")
    message = refused(command, file, *(("--out", tmp_path / "run") if command == "train" else ()))
    assert "d_conv: " in message and "4096" in message
    assert not (tmp_path / "run").exists()


def test_tensors_whose_size_overflows() -> None:
    model = parse_model({"kind": "decoder", "vocab_size": 9 * 10**18, "d_model": 128, "context": 8,
                         "blocks": [{"kind": "pre", "layers": ["mlp"]}]})
    with pytest.raises(ConfigError, match="its tensors are larger than memory can hold"):
        built_model(model)


@pytest.mark.parametrize(("change", "what"), [
    ("seed=true", "seed: a number is expected, not true or false, got True."),
    ("training.optimizer.beta2=true", "training.optimizer.beta2: a number is expected, not true or false"),
    ("seed=9223372036854775808", "seed: whole numbers are at most 9,223,372,036,854,775,807 (64 bits)"),
    ("seed=!!python/name:os.system", "seed: the value '!!python/name:os.system' is not YAML (line 1, column 1: the"),
])
def test_values_of_the_wrong_type(workplace: Path, change: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_run({"model": {"kind": "decoder", "vocab_size": 9, "d_model": 8, "context": 8, "blocks": []}},
                  [change])
    assert any(problem.startswith(what) for problem in caught.value.problems), caught.value


def test_true_inside_a_list_of_numbers() -> None:
    class Made(Settings):
        sizes: tuple[int, ...]

    assert parse(Made, {"sizes": [1, 2]}).sizes == (1, 2)
    with pytest.raises(ConfigError, match="sizes: a number is expected, not true or false"):
        parse(Made, {"sizes": [1, True]})


def test_threads() -> None:
    processors = os.cpu_count() or 1
    most = max(ALWAYS, EACH * processors)
    require_threads(most, "--threads")
    for count in (0, most + 1, 99_999):
        with pytest.raises(InputError, match=rf"^--threads: {count:,} threads on .* Give 1 to {most:,}\.$"):
            require_threads(count, "--threads")


def test_threads_of_a_command(refused: Refuse, tmp_path: Path) -> None:
    assert "--threads: 99,999 threads on" in refused("plan", "transformer", "--threads", "99999")
    message = refused("compare", "transformer", "lstm", "--budget", "tokens=1000", "--threads", "99999",
                      "--out", tmp_path / "study")
    assert "threads: 99,999 threads on" in message


def test_seeds_of_commands(refused: Refuse) -> None:
    assert "--seed" in refused("check", "transformer", "--seed", str(2**63))


@pytest.mark.parametrize(("command", "option"), [("generate", "--max-new-tokens"), ("generate", "--top-k"),
                                                 ("eval", "--context"), ("train", "--steps"), ("check", "--length")])
def test_an_option_beyond_64_bits(refused: Refuse, workplace: Path, command: str, option: str) -> None:
    place = workplace / ("tiny.yaml" if command in ("train", "check") else "run")
    message = refused(command, place, option, str(2**70))
    assert message == (f"error: {option}: whole numbers are at most 9,223,372,036,854,775,807 (64 bits). Give a "
                       "smaller one.")


def test_the_order_of_an_ngram() -> None:
    """A hundred thousand orders are as many tables and passes over the text."""
    with pytest.raises(ConfigError, match=r"order: .*100"):
        parse_model({"kind": "ngram", "vocab_size": 9, "context": 8, "order": 100_000})
    assert built_model(parse_model({"kind": "ngram", "vocab_size": 9, "context": 8, "order": 100}))


@pytest.mark.parametrize("penalty", [1e308, 21.0, -1.0, float("nan")])
def test_a_penalty_of_the_length_that_no_float_holds(workplace: Path, penalty: float) -> None:
    with pytest.raises(InputError, match=r"^length_penalty: .* is out of range\. Give 0 to 20\.$"):
        weft.beam_search(workplace / "run", ["line"], max_new_tokens=1, length_penalty=penalty)
