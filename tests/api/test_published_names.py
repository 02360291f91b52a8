"""The name of a published model stands for a configuration wherever a preset's does, and an unknown one is answered by
what it may mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from weft import api
from weft.api.configs import presets, read_config
from weft.cli.main import app
from weft.core.errors import ConfigError, InputError
from weft.families.family import name_hint, relative_hint
from weft.preset_files.published_models import published, size_named

SMALL = ["model.blocks=[{kind: pre, layers: [{kind: attention, n_heads: 2}]}]", "model.d_model=16",
         "model.vocab_size=270", "tokenizer.vocab_size=270", "training.context=16", "model.position.max_length=16",
         "model.context=16"]


def run(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("name", presets())
def test_every_name_stands_for_a_run(name: str) -> None:
    """Without its budget, which needs a text where it is in time."""
    assert api.read_run(name).model.kind


def test_config_show_writes_a_configuration_that_is_read_back(tmp_path: Path) -> None:
    shown = run("config", "show", "gpt3-175b")
    (tmp_path / "mine.yaml").write_text(shown)
    assert api.read_run(tmp_path / "mine.yaml") == api.read_run("gpt3-175b")
    assert yaml.safe_load(shown)["model"]["d_model"] == 12288


def test_plan_counts_a_published_model_with_changes() -> None:
    found = api.plan("gpt2-small", context=8)
    assert found.parameters.total == 124_439_808 == published()["gpt2"].parameters
    assert api.plan("gpt2", ["model.blocks.0.repeat=1"], context=8).parameters.total == 124_439_808 - 11 * 7_087_872


def test_the_shares_are_printed_with_their_assumptions() -> None:
    text = run("plan", "gpt3-large", "--flops")
    assert "as quoted" in text and "assumed: one forward pass" in text and "35.0%" in text
    data = json.loads(run("plan", "gpt3-large", "--flops", "--json"))
    assert data["quoted"]["feed-forward"] == 0.44 and data["context"] == 2048


@pytest.mark.usefixtures("_near")
def test_check_takes_a_published_model_with_changes() -> None:
    found = api.check("gpt2-small", ["model.blocks.0.repeat=2"], length=16)
    assert found.holds


def test_a_published_model_trains_anew(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a tale of two cities and of one river. " * 200)
    result = api.train("gpt2-small", [*SMALL, f"data.path={text}", "training.steps=2"], out=tmp_path / "run")
    assert result.steps == 2
    assert api.load(tmp_path / "run").config.vocab_size == 270


def test_a_study_takes_a_published_model() -> None:
    assert read_config("llama-3.1-8b")["model"]["d_model"] == 4096
    assert read_config("transformer")["model"]["d_model"] == 128


@pytest.mark.parametrize(("name", "hint"), [
    ("mamba", "Published models of that name: 'mamba-130m'"), ("lama-3.1-8b", "Did you mean 'llama-3.1-8b'?"),
    ("gpt3", "'gpt3-small'"), ("transfromer", "Did you mean 'transformer'?"), ("qwen", "more (weft list families)"),
    ("gpt4", "Presets: lstm, transformer; `weft list families` shows"), ("rwkv4", "'rwkv-4-169m'"),
    ("Llama-3.1-8B", "Did you mean 'llama-3.1-8b'?"), ("xyz", "Presets: lstm, transformer;"),
    ("llama-3.1-9b", "Did you mean 'llama-3.1-8b'?")])
def test_an_unknown_name_is_answered_by_what_it_may_mean(name: str, hint: str) -> None:
    assert hint in name_hint(name, ["lstm", "transformer"])


def test_commands_give_that_hint() -> None:
    with pytest.raises(InputError, match=r"'mamba' is neither a file, a preset nor a checkpoint\. Published models of "
                                         r"that name: 'mamba-130m'"):
        api.plan("mamba")
    with pytest.raises(InputError, match=r"neither a file nor a preset\. Did you mean 'gpt2-small'"):
        api.read_run("gpt2-smal")


@pytest.mark.parametrize(("kind", "hint"), [
    ("mamba", ""), ("xlstm", ""), ("gpt5", ""), ("qwen4", ""), ("phimoe", ""), ("lama", "Did you mean 'llama'?"),
    ("llama4", "It is named after 'llama', which is known, and may differ from it."),
    ("qwen2_vl", "It is named after 'qwen2', which is known, and may differ from it.")])
def test_likeness_of_letters_alone_says_nothing_about_a_family(kind: str, hint: str) -> None:
    assert relative_hint(kind, ["llama", "gemma", "qwen2", "qwen3", "phi", "gpt2", "phi3"]) == hint


def test_further_names_are_no_other_models() -> None:
    names = [*published(), *(other for size in published().values() for other in size.also)]
    assert len(set(names)) == len(names)
    assert size_named("bert-base") is size_named("bert-base-uncased") is not None
    assert size_named("none-such") is None


def test_a_change_to_a_published_model_is_checked_as_any() -> None:
    with pytest.raises(ConfigError, match="d_modle"):
        api.plan("gpt2-small", ["model.d_modle=3"])
