"""The user's mistakes: one message that names the place and the remedy, exit code 2, no traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import weft as library
from weft.core.errors import StateError

Refuse = Callable[..., str]


@pytest.mark.parametrize(("content", "what", "remedy"), [
    (None, "no such file or folder.", "Check the path."),
    (b"", "the file is empty.", "Give a file that has text."),
    (b"text\0with a zero", "the file is binary (a zero byte at offset 4).", "Give a text file"),
    (b"caf\xe9 au lait", "the file is not UTF-8: byte 0xe9 at offset 3", "iconv -f latin-1 -t utf-8"),
    (b"\xff\xfea\0b\0", "the file begins with the mark of UTF-16, not of UTF-8.", "iconv -f utf-16"),
])
def test_a_text_that_cannot_be_read(refused: Refuse, workplace: Path, tmp_path: Path, content: bytes | None, what: str,
                                    remedy: str) -> None:
    text = tmp_path / "text.bin"
    if content is not None:
        text.write_bytes(content)
    message = refused("train", workplace / "tiny.yaml", "--data", text, "--out", tmp_path / "run")
    assert message.startswith(f"error: {text}: {what}") and remedy in message
    assert refused("eval", workplace / "run", "--data", text) == message


def test_a_text_shorter_than_a_window(refused: Refuse, workplace: Path, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("too short")
    message = refused("train", workplace / "tiny.yaml", "training.context=64", "--data", text, "--out", tmp_path / "a")
    assert "short.txt (train): " in message
    assert "tokens are too few: one window of context 64 needs 65. Give more text, or a context of at most" in message


@pytest.mark.parametrize(("change", "told"), [
    ("training.stepps=3", "training.stepps: unknown key 'stepps'. Did you mean 'steps'?"),
    ("model.d_modle=3", "model.d_modle: unknown key 'd_modle'. Did you mean 'd_model'?"),
    ("tokenizer=bites", "tokenizer.kind: no tokenizer of kind 'bites'. Did you mean 'bytes'?"),
    ("model.blocks.0.layers.0.kind=atention", "no mixer or feedforward of kind 'atention'. Did you mean 'attention'?"),
    ("training.steps=-1", "training.steps: Input should be greater than 0, got -1."),
    ("training.steps", "'training.steps': not of the form key.path=value."),
    ("model.blocks.7.kind=pre", "model.blocks is a list of 1, and '7' is no index of it. Give 0 to 0."),
    ("training.optimizer=lion", "training.optimizer.kind: no optimizer of kind 'lion'. Known names: adafactor, "
     "adafactor_unfactored, adamw, muon, sgd."),
])
def test_a_key_or_kind_that_is_not_known(refused: Refuse, workplace: Path, tmp_path: Path, change: str,
                                         told: str) -> None:
    assert told in refused("train", workplace / "tiny.yaml", change, "--out", tmp_path / "run")
    assert told in refused("config", "show", workplace / "tiny.yaml", change)


@pytest.mark.parametrize("command", ["train", "check", "plan"])
def test_a_preset_that_is_not_known(refused: Refuse, command: str) -> None:
    message = refused(command, "transfromer")
    assert "'transfromer' is neither a file" in message and "Did you mean 'transformer'?" in message
    assert "Or give the path of a YAML or JSON file" in message


@pytest.mark.parametrize("command", ["check", "plan"])
def test_changes_to_what_has_no_configuration_of_its_own(refused: Refuse, run: Path, command: str) -> None:
    message = refused(command, run, "model.d_model=64", "seed=2")
    assert ("overrides: model.d_model=64, seed=2 cannot be applied to a checkpoint, whose weights fit its own "
            "configuration alone. Leave them out, or name the configuration of the run.") in message
    assert "to a checkpoint" in refused(command, "nobody/has-this-model", "seed=2"), "before it is fetched"
    config = library.load(run).config
    for function in (library.check, library.plan):
        with pytest.raises(library.api.UserError, match="seed=2 cannot be applied to a configuration object"):
            function(config, "seed=2")
    assert "model.d_modle: unknown key 'd_modle'. Did you mean 'd_model'?" in refused(command, "lstm",
                                                                                      "model.d_modle=3")


def test_a_configuration_that_is_no_yaml(refused: Refuse, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: {kind: decoder\nsteps: 3")
    assert "line 2, column 6: not YAML:" in refused("check", file)
    assert "the file cannot be read (No such file or directory)." in refused("plan", tmp_path / "absent.yaml")


@pytest.mark.parametrize(("layer", "position", "told"), [
    ({"position": "learned"}, "sinusoidal", "blocks.0.layers.0.position: 'learned' acts on embeddings, not inside "
     "attention. Put it in the model's `position`."),
    ({"mask": "causal & window(0)"}, "none", "blocks.0.layers.0.mask: window: size is 0, but a window holds at least "
     "the query's own key. Give 1 or more."),
    ({"n_heads": 4, "n_kv_heads": 3}, "none", "blocks.0.layers.0.n_kv_heads: 4 query heads do not divide into 3 "
     "key/value heads. Choose n_kv_heads among the divisors of n_heads."),
    ({"n_heads": 3}, "none", "blocks.0.layers.0.n_heads: "),
])
def test_an_impossible_pair(refused: Refuse, tmp_path: Path, layer: dict[str, Any], position: str, told: str) -> None:
    model = {"kind": "decoder", "d_model": 8, "context": 8, "position": position,
             "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, **layer}]}]}
    file = tmp_path / "model.yaml"
    file.write_text(yaml.safe_dump(model))
    message = refused("plan", file)
    assert told in message, message
    assert "problem in the configuration" in message
    assert told in refused("train", file, "--out", tmp_path / "run")


def test_two_absolute_position_schemes(refused: Refuse, tmp_path: Path) -> None:
    model = {"kind": "decoder", "d_model": 8, "vocab_size": 9, "position": ["learned", "sinusoidal"], "blocks": ["pre"]}
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(model))
    message = refused("plan", tmp_path / "model.yaml")
    assert "position: ['learned', 'sinusoidal'] is not a position. Give a kind or a mapping with one." in message


def test_learned_positions_that_prompt_and_new_tokens_exceed(refused: Refuse, weft: Any, workplace: Path,
                                                             tmp_path: Path) -> None:
    run = tmp_path / "run"
    made = weft("train", workplace / "tiny.yaml", "model.position=learned", "training.steps=1", "--out", run)
    assert made.code == 0, made
    message = refused("generate", run, "--prompt", "abcd", "--max-new-tokens", "9")
    assert "this model has positions for 8 tokens. Shorten the prompt or lower max_new_tokens." in message
    assert "context: 9 tokens, but this model's positions end at 8. Give at most 8" in refused(
        "plan", run, "--context", "9")


def damaged(workplace: Path, tmp_path: Path) -> Path:
    """A copy of the last checkpoint, to be spoilt."""
    return Path(shutil.copytree(workplace / "run/checkpoints/00000003", tmp_path / "copy"))


def test_a_truncated_checkpoint(refused: Refuse, workplace: Path, tmp_path: Path) -> None:
    copy = damaged(workplace, tmp_path)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    message = refused("eval", copy)
    assert f"{copy}: 1 file is not as it was written: - model.safetensors is truncated:" in message
    assert "Copy the checkpoint again, whole, or use an earlier one." in message


def test_a_checkpoint_whose_file_was_renamed(refused: Refuse, workplace: Path, tmp_path: Path) -> None:
    copy = damaged(workplace, tmp_path)
    (copy / "model.safetensors").rename(copy / "pytorch_model.safetensors")
    assert "model.safetensors is missing." in refused("check", copy)
    (copy / "config.json").rename(copy / "settings.json")
    assert "not a checkpoint: there is no config.json in it." in refused("score", copy, "--text", "a")


def test_a_checkpoint_of_another_shape(refused: Refuse, workplace: Path, tmp_path: Path) -> None:
    """Its manifest is in order: somebody has saved other weights into it on purpose."""
    copy = damaged(workplace, tmp_path)
    tensors = load_file(copy / "model.safetensors")
    name = next(name for name, tensor in tensors.items() if tensor.shape == (257, 8))
    tensors[name] = torch.zeros(257, 9)
    save_file(tensors, copy / "model.safetensors")
    from weft.disk.manifest import write_manifest

    (copy / "MANIFEST.json").unlink()
    write_manifest(copy)
    message = refused("generate", copy, "--prompt", "a")
    assert f"{name}: shape [257, 9] where the model has [257, 8]." in message
    assert "Load it with the configuration and the parts that it was saved with." in message


def test_a_folder_that_is_no_checkpoint(refused: Refuse, tmp_path: Path) -> None:
    assert f"{tmp_path / 'absent'}: no such folder. Give the folder of a checkpoint" in refused(
        "generate", tmp_path / "absent", "--prompt", "a")
    assert "not a checkpoint: there is no config.json in it." in refused("check", tmp_path)


@pytest.mark.parametrize(("content", "told"), [
    ("[[1, 2], [3, 257]]", "[1][1]: id 257 is outside the vocabulary of 257 ids. Give ids from 0 to 256."),
    ("[[1, 2", "the file cannot be read (not JSON:"),
    ("{}", "an object where a list of rows is expected."),
    ('[{"tokenz": [1]}]', "[0]: unknown key 'tokenz'. Did you mean 'tokens'?"),
    ('[{"source": [1], "target": [2]}]', "[0].source: the row has a source, and this model takes none."),
    ("[[1.5]]", "[0][0]: the float 1.5 where a token id is expected. Give whole numbers."),
])
@pytest.mark.parametrize("command", ["generate", "score"])
def test_rows_that_the_model_cannot_take(refused: Refuse, run: Path, tmp_path: Path, command: str, content: str,
                                         told: str) -> None:
    (tmp_path / "rows.json").write_text(content)
    assert told in refused(command, run, "--rows", tmp_path / "rows.json")


def test_options_that_exclude_each_other(refused: Refuse, workplace: Path, run: Path) -> None:
    rows = workplace / "rows.json"
    assert "--prompt, --rows: both text and rows of tokens. Give one of them." in refused(
        "generate", run, "--prompt", "a", "--rows", rows)
    assert "--text, --rows: neither text nor rows of tokens. Give one of them." in refused("score", run)
    assert "--greedy, --temperature: greedy decoding has no temperature, got 0.5. Give one of them." in refused(
        "generate", run, "--prompt", "a", "--greedy", "--temperature", "0.5")
    assert ("stride: a stride of 4 was given, but whole documents have no stride. Leave it out, or evaluate in windows."
            in refused("eval", run, "--documents", "--stride", "4"))


def test_options_out_of_range(refused: Refuse, run: Path) -> None:
    assert "top_p: 1.5 is out of range. Give a number above 0, at most 1." in refused(
        "generate", run, "--prompt", "a", "--top-p", "1.5")
    assert "--lengths: 'x' is not a positive number of tokens. Give numbers such as 128 or 128,512." in refused(
        "eval", run, "--lengths", "8,x")
    assert "stride: must be from 1 to the context, 4, received 5. Choose one in range." in refused(
        "eval", run, "--context", "4", "--stride", "5")


def test_a_dtype_or_device_that_is_not_there(refused: Refuse, workplace: Path, run: Path, tmp_path: Path) -> None:
    assert "dtype: unknown dtype 'float23'. Did you mean 'float32'?" in refused(
        "generate", run, "--prompt", "a", "--dtype", "float23")
    assert "unknown dtype 'half'. Known names: bfloat16, float32, float64." in refused(
        "plan", workplace / "tiny.yaml", "--dtype", "half")
    assert "training.dtype: Input should be 'auto', 'float32', 'float64' or 'bfloat16', got 'half'." in refused(
        "train", workplace / "tiny.yaml", "--dtype", "half", "--out", tmp_path / "a")
    for device in ("tpu", "meta", "cuda:99"):
        assert f"device: the device '{device}' cannot be used here." in refused(
            "plan", workplace / "tiny.yaml", "--device", device)
        assert f"device: the device '{device}' cannot be used here. Use cpu, or see weft doctor" in refused(
            "train", workplace / "tiny.yaml", "--device", device, "--out", tmp_path / "b")


@pytest.mark.parametrize("command", [["list"], ["config", "schema"], ["check", "lstm"]])
def test_a_plugin_that_is_not_there(refused: Refuse, command: list[str]) -> None:
    assert "the plugin 'absent.py' is not a file. Give the path of a Python file." in refused(
        *command, "--plugin", "absent.py")


def test_a_plugin_that_does_not_import(refused: Refuse, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("from weft.core.registry import registre\n")
    message = refused("list", "--plugin", tmp_path / "broken.py")
    assert "does not import: ImportError: cannot import name 'registre'" in message
    assert "Correct the file and try again." in message


def test_a_kind_that_is_not_in_the_catalogue(refused: Refuse) -> None:
    message = refused("list", "atention")
    assert "no part and no group of parts is called 'atention'. Did you mean 'attention'?" in message


def test_a_run_that_stands_in_the_way(refused: Refuse, workplace: Path, tmp_path: Path) -> None:
    message = refused("train", workplace / "tiny.yaml", "--out", workplace / "run")
    assert "holds a run already. Go on with --resume, or choose another folder." in message
    message = refused("train", workplace / "tiny.yaml", "training.batch_size=3", "--out", workplace / "run", "--resume")
    assert "training.batch_size: 3, and the run began with 2." in message
    assert "there is no run to resume in" in refused(
        "train", workplace / "tiny.yaml", "--out", tmp_path / "none", "--resume")


def test_an_unknown_option_is_refused_by_name(weft: Any) -> None:
    told = weft("list", "--jsn")
    assert told.code == 2 and "--json" in told.err


def test_a_state_of_another_model(run: Path) -> None:
    model = library.load(run).model
    other = library.read_run("lstm", ["model.d_model=8"]).model.build()
    with pytest.raises(StateError, match=r"state: the state belongs to another model\. Use a state from this model's"):
        model(torch.tensor([[1]]), other.init_state(1))  # type: ignore[operator]


def test_a_checkpoint_without_a_tokenizer_takes_rows_alone(refused: Refuse, weft: Any, workplace: Path,
                                                           tmp_path: Path) -> None:
    from weft.checkpoints import save_checkpoint

    save_checkpoint(tmp_path / "bare", library.load(workplace / "run").model, None)
    assert "the checkpoint has no tokenizer. Give rows of token ids instead of text." in refused(
        "generate", tmp_path / "bare", "--prompt", "a")
    assert "the checkpoint has no tokenizer." in refused("eval", tmp_path / "bare", "--data", workplace / "text.txt")
    rows = json.loads(weft("generate", tmp_path / "bare", "--rows", workplace / "rows.json", "--max-new-tokens", "2",
                           "--greedy", "--json").out)["rows"]
    assert [row["text"] for row in rows] == [None] * 3 and len(rows[0]["tokens"]) == 2


@pytest.mark.parametrize(("arguments", "told"), [
    (["--part", "train"], "--part: 'train' is not a held-out part of a run. Give validation or test."),
    (["--part", "test", "--data", "mine.txt"], "both a part of the run's held-out text and another text"),
    (["--part", "test"], "test_path"),
])
def test_a_part_that_the_run_does_not_hold_out(refused: Refuse, workplace: Path, arguments: list[str],
                                               told: str) -> None:
    assert told in refused("eval", workplace / "run", *arguments)
