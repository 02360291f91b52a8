"""Commands that need no trained model: list, doctor, plan, config, help."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import weft as library
from cli.conftest import call
from fresh import check_near
from weft.api.configs import own_presets
from weft.cli.check import _explained
from weft.cli.main import COMMANDS, GROUPS
from weft.cli.text import console, section
from weft.core.registry import REGISTRY
from weft.laws.report import Finding, Report


def test_help_imports_neither_torch_nor_pydantic_nor_rich() -> None:
    """What takes the time: torch alone takes a second. Nor does it import any command, or what commands share but
    for the line that every failure gets; what is left is typer's own import."""
    code = ("import sys; from weft.cli.main import app\n"
            "try: app(['--help'])\n"
            "except SystemExit: pass\n"
            "heavy = {'torch', 'numpy', 'pydantic', 'rich', 'yaml', 'weft.api'} & set(sys.modules)\n"
            "own = {name for name in sys.modules if name.startswith('weft.cli.')}\n"
            "print(sorted(heavy | own - {'weft.cli.main', 'weft.cli.main', 'weft.cli.failures', 'weft.cli.ctrl_c',"
            " 'weft.cli.terminal'}))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "generate" in done.stdout and done.stdout.endswith("\n[]\n")


@pytest.mark.parametrize("command", [[], ["list"], ["doctor"], ["plan"], ["check"], ["train"], ["eval"], ["generate"],
                                     ["score"], ["config"], ["config", "show"], ["config", "schema"]])
def test_every_command_explains_its_arguments_and_options(weft: Any, command: list[str]) -> None:
    told = weft(*command, "--help")
    assert told.code == 0 and "Usage: " in told.out
    if command and command != ["config"]:
        assert "--json" in told.out


def test_help_promises_what_there_are_commands_for(weft: Any) -> None:
    said = weft("--help").out
    assert "Declare, train, compare, check and decode language models" in said
    listed = {line.split()[0] for line in said.splitlines() if line.startswith("  ") and line.split()}
    assert {*COMMANDS, *GROUPS} <= listed and "deploy" not in said


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_the_list_of_commands_says_of_each_what_its_own_help_says(name: str) -> None:
    command = {**COMMANDS, **GROUPS}[name]
    assert command.load(name).get_short_help_str(limit=120) == command.line


def test_a_typing_error_in_a_command_is_told_with_the_nearest_one(weft: Any) -> None:
    told = weft("trian")
    assert told.code == 2 and "No such command 'trian'. Did you mean 'train'?" in told.err


def test_version(weft: Any) -> None:
    assert weft("--version").out == "weft 0.1.0\n"


def test_list_names_every_part_once_in_80_columns(weft: Any) -> None:
    told = weft("list")
    for part in REGISTRY.parts():
        assert f"\n{part.kind} " in told.out, part.kind
    assert "\nwindow(size) " in told.out
    assert max(map(len, told.out.splitlines())) <= 80


def test_list_of_a_group_tells_states_traits_and_sources(weft: Any) -> None:
    told = weft("list", "position")
    assert "rope" in told.out and "attention\n" not in told.out
    assert "traits  declared_length" in told.out and "source  Press et al. 2022, section 3" in told.out
    found = weft("list", "mixer", "--json").json()
    assert {each["kind"]: each["state_size"] for each in found}["lstm"] == "2 d_hidden float32 numbers"


def test_list_of_a_part_tells_everything_about_it(weft: Any) -> None:
    told = weft("list", "lstm")
    for expected in ("mixer lstm", "c_t = f c_{t-1} + i g", "d_hidden  integer > 0 or null  = null",
                     "forget_bias  number  = 0.0\n    added to the initial bias of the forget gate; 1 keeps",
                     "unlike gru: keeps a cell beside what it returns", "state: 2 d_hidden float32 numbers",
                     "Hochreiter & Schmidhuber 1997", "defined in: weft.mixers.lstm"):
        assert expected in told.out
    page, = weft("list", "rope", "--json").json()
    assert page["entry"]["traits"].keys() == {"declared_length"}
    assert {field["name"]: field["default"] for field in page["fields"]}["base"] == "10000.0"


def test_list_reads_what_is_stored_and_neither_torch_nor_the_parts() -> None:
    code = ("import sys; from weft.cli.main import app\n"
            "for arguments in (['list'], ['list', 'families']):\n"
            "    try: app(arguments)\n"
            "    except SystemExit: pass\n"
            "heavy = {'torch', 'numpy', 'yaml', 'weft.api', 'weft.core.registry', 'weft.families.family'}\n"
            "print(sorted(heavy & set(sys.modules)))")
    for _ in range(2):  # the first makes the index, where no process of this version has
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "\nlstm " in done.stdout and "\ngpt2-xl  " in done.stdout and done.stdout.endswith("\n[]\n")


def test_list_has_presets_and_published_models(weft: Any) -> None:
    told = weft("list")
    assert "\npresets\n" in told.out and "An LSTM with tied embeddings" in told.out
    assert re.search(r"\ngpt2 +gpt2, gpt2-medium, gpt2-large, gpt2-xl", told.out)
    found = weft("list", "presets", "--json").json()
    assert {"name": "gpt2", "line": "124,439,808 parameters", "family": "gpt2"} in found
    files = (Path(library.__file__).parent / "preset_files").glob("*.yaml")
    assert {each["name"] for each in found if not each["family"]} == {file.stem for file in files}


def test_list_of_settings_tells_the_keys_of_a_file(weft: Any) -> None:
    told = weft("list", "training")
    assert "settings training" in told.out and "batch_size  integer > 0  = 16\n    rows of a batch." in told.out
    assert "compute.matmul" in told.out and "\nsource:" not in told.out
    assert {"run", "data", "training", "report", "study", "sampling"} <= {
        each["kind"] for each in weft("list", "settings", "--json").json()}


def test_list_of_a_mask_tells_its_arguments(weft: Any) -> None:
    page, = weft("list", "fixed", "--json").json()
    assert page["entry"]["usage"] == "fixed(stride, summary, head=0)"
    assert [(field["name"], field["default"]) for field in page["fields"]] == [
        ("stride", "required"), ("summary", "required"), ("head", "0")]


def test_list_of_a_kind_that_several_groups_have_tells_all(weft: Any) -> None:
    told = weft("list", "none")
    assert "norm none" in told.out and "position none" in told.out


def test_doctor_tells_versions_machine_and_extras(weft: Any) -> None:
    told = weft("doctor", "--no-measure")
    assert told.code == 0
    for expected in ("torch  ", "2.", "computing with", "disk free", "dev ", "docs "):
        assert expected in told.out
    assert not any(line.startswith("CPU ") for line in told.out.splitlines()), "beside the device cpu"
    found = weft("doctor", "--no-measure", "--json").json()
    assert found["versions"]["weft"] == "0.1.0" and found["routes"] == [] and found["devices"][0]["name"] == "cpu"


def test_doctor_counts_one_thread_as_one(weft: Any) -> None:
    before = torch.get_num_threads()
    try:
        one, two = (weft("doctor", "--no-measure", "--threads", each).out for each in ("1", "2"))
    finally:
        torch.set_num_threads(before)
    assert "1 thread on " in one and "2 threads on " in two


@pytest.mark.parametrize("preset", own_presets())
def test_plan_of_every_preset_fits_80_columns(weft: Any, preset: str) -> None:
    told = weft("plan", preset, "--batch-size", "2")
    assert told.code == 0, told
    assert "parameters" in told.out and ("State of 2 rows" in told.out or preset == "encoder")
    assert max(map(len, told.out.splitlines())) <= 80


def test_plan_tells_the_time_of_a_run_when_asked(weft: Any, workplace: Path) -> None:
    told = weft("plan", workplace / "tiny.yaml", "--tokens", "100000")
    assert "100,000 tokens of training:" in told.out and "seconds here" in told.out


def test_plan_of_a_checkpoint_counts_its_model(weft: Any, run: Path) -> None:
    found = weft("plan", run, "--context", "4", "--dtype", "bfloat16", "--json").json()
    # By hand: embeddings 257 x 8, attention 4 (8 x 8), perceptron 2 (8 x 16) + 16 + 8, two LayerNorms of 2 x 8.
    assert found["parameters"]["total"] == 257 * 8 + 4 * 64 + 2 * 128 + 24 + 2 * 16
    assert found["context"] == 4 and found["dtype"] == "bfloat16"
    assert found["weights"]["bfloat16"] == 2 * found["parameters"]["total"]


@pytest.fixture(scope="module")
def checked(workplace: Path) -> dict[str, Any]:
    """What `check` finds of the tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        check_near(patch)
        found: dict[str, Any] = call("check", workplace / "tiny.yaml", "--seed", "1", "--json").json()
    return found


def test_check_of_a_configuration_runs_the_twin(checked: dict[str, Any]) -> None:
    assert checked["holds"] is True and checked["own"] is None
    assert {finding["law"] for finding in checked["twin"]["findings"]} >= {"split", "causality", "packed", "readout"}
    run = {finding["law"] for report in ("twin", "long", "far") for finding in checked[report]["findings"]}
    assert checked["laws"]["split"] == "a sequence run in pieces must equal the sequence run whole"
    assert set(checked["laws"]) == run
    assert all(len(text.split()) > 4 for text in checked["laws"].values()), "every law says what it asks for"


def test_check_says_what_each_law_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    reports = [Report("a", (Finding("split", "1+2", 0.0, 1.0), Finding("split gradients", "1+2", 0.0, 1.0))),
               Report("b", (Finding("finite", "all", 0.0, 1.0), Finding("split", "2+1", 0.0, 1.0)))]
    section(console(), "what each law says", _explained(reports))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.strip().split("\n")]
    assert lines == ["what each law says", "split a sequence run in pieces must equal the sequence run whole",
                     "finite outputs must be numbers, however long the row",
                     "... gradients the same, of the gradients of every parameter and input"]


def test_config_show_resolves_defaults_and_changes(weft: Any) -> None:
    tree = yaml.safe_load(weft("config", "show", "transformer", "training.steps=7", "training.seconds=null").out)
    assert tree["training"]["steps"] == 7 and tree["training"]["optimizer"]["beta2"] == 0.95
    assert tree["model"]["vocab_size"] == 1024
    assert weft("config", "show", "transformer", "--json").json()["model"] == tree["model"]


def test_config_schema_describes_runs_or_the_model_of_a_file(weft: Any, tmp_path: Path) -> None:
    assert weft("config", "schema").json()["$ref"] == "#/$defs/RunConfig"
    assert weft("config", "schema", "lstm").json()["$ref"] == "#/$defs/RunConfig"
    alone = tmp_path / "model.json"
    alone.write_text(json.dumps({"kind": "ngram", "order": 3}))
    told = weft("config", "schema", alone, "--out", tmp_path / "schema.json")
    assert told.out == f"wrote {tmp_path / 'schema.json'}\n"
    assert json.loads((tmp_path / "schema.json").read_text())["$ref"] == "#/$defs/model.ngram"


@pytest.mark.usefixtures("_near")
def test_plan_and_check_take_changes_as_train_does(weft: Any, workplace: Path, checked: dict[str, Any]) -> None:
    tiny, changes = workplace / "tiny.yaml", ["model.d_model=16", "model.blocks.0.layers.1.d_ff=8"]
    found = weft("plan", tiny, *changes, "--json").json()
    # By hand: embeddings 257 x 16, attention 4 (16 x 16), perceptron 2 (16 x 8) + 8 + 16, two LayerNorms of 2 x 16.
    assert found["parameters"]["total"] == 257 * 16 + 4 * 256 + 2 * 128 + 24 + 2 * 32
    assert library.plan(tiny, changes).parameters.total == found["parameters"]["total"]
    windowed = weft("check", tiny, "model.blocks.0.layers.0.mask=causal & window(40)", "--length", "16",
                    "--json").json()
    assert checked["border"] < 40 <= windowed["border"]
