"""A part from outside Weft passes through list, train and generate; docs/add_a_part.md runs `weft check` of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fresh
from weft.core.registry import load_plugin
from weft.ops.forms import OPERATIONS

ROOT = Path(__file__).parents[2]
PLUGIN, CONFIG = ROOT / "examples/min_gru.py", ROOT / "examples/min_gru.yaml"
SMALL = ["model.blocks.0.repeat=1", "model.context=16", "training.steps=3", "training.batch_size=2",
         "data.max_bytes=50000", "report.eval_batches=1"]


def weft(folder: Path, *arguments: str, plugin: bool = True) -> fresh.Ended:
    """The command in a process of its own, so that the part stays unknown to the other tests."""
    return fresh.fresh(fresh.weft_near, *arguments, *(["--plugin", str(PLUGIN)] if plugin else []), folder=folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a few steps in ``run``."""
    folder = tmp_path_factory.mktemp("plugin")
    done = weft(folder, "train", str(CONFIG), *SMALL, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "step 3/3" in done.stdout
    assert "checking the laws on a small twin of the model" in done.stdout and "(min_gru)" in done.stdout
    assert "every law holds" in done.stdout
    return folder


def broken(folder: Path) -> str:
    """The plugin with a memory that is lost between one piece and the next."""
    path, text = folder / "min_gru.py", PLUGIN.read_text()
    wrong = text.replace("(last,))", "(0 * last,))")
    assert wrong != text
    path.write_text(wrong)
    return str(path)


def test_a_part_that_breaks_a_law_is_not_trained_unless_it_is_asked_for(tmp_path: Path) -> None:
    train = ["train", str(CONFIG), *SMALL, "--out", "run", "--plugin", broken(tmp_path)]
    refused = weft(tmp_path, *train, plugin=False)
    assert refused.returncode == 1
    assert "error: model (min_gru): the model breaks a law: " in refused.stderr
    assert "take it nevertheless with --unchecked" in refused.stderr
    assert not (tmp_path / "run").exists()
    taken = weft(tmp_path, *train, "--unchecked", plugin=False)
    assert taken.returncode == 0 and "checking the laws" not in taken.stdout and "step 3/3" in taken.stdout
    resumed = weft(tmp_path, *train, "--resume", plugin=False)
    assert resumed.returncode == 0, resumed.stderr


def test_a_state_that_nobody_described_is_told_all_the_same(tmp_path: Path) -> None:
    path, text = tmp_path / "min_gru.py", PLUGIN.read_text()
    silent = text.replace(',\n        state_size="d_model float32 numbers")', ")")
    assert silent != text
    path.write_text(silent)
    for kind in ("min_gru", "mixer"):
        done = weft(tmp_path, "list", kind, "--plugin", str(path), plugin=False)
        assert "HiddenState" in " ".join(done.stdout.split()), done.stderr
    assert "state: none" not in weft(tmp_path, "list", "min_gru", "--plugin", str(path), plugin=False).stdout


def test_it_is_listed_with_its_source_and_state(tmp_path: Path) -> None:
    done = weft(tmp_path, "list", "min_gru", "--json")
    page, = json.loads(done.stdout)
    assert page["entry"]["group"] == "mixer" and page["entry"]["state_size"] == "d_model float32 numbers"
    assert "h_t = (1 - z_t) h_(t-1)" in page["text"]


def test_a_trained_model_generates(trained: Path) -> None:
    done = weft(trained, "generate", "run", "--prompt", "def ", "--max-new-tokens", "4", "--greedy", "--ignore-end",
                "--json")
    assert len(json.loads(done.stdout)["rows"][0]["tokens"]) == 4


def test_without_the_plugin_the_checkpoint_names_it(trained: Path) -> None:
    done = weft(trained, "generate", "run", "--prompt", "a", plugin=False)
    assert done.returncode == 2
    assert "no mixer or feedforward of kind 'min_gru'" in done.stderr
    assert "If it was trained with a plugin, give that file with --plugin" in done.stderr


def print_values() -> None:
    """Inputs, outputs and parameters of the part, as JSON."""
    load_plugin(str(PLUGIN))
    layer = sys.modules["weft_plugin_min_gru"].MinGRU(3).double()
    x = torch.sin(torch.arange(12.0, dtype=torch.float64)).reshape(1, 4, 3)
    print(json.dumps([x.tolist(), layer(x).y.tolist(), *[p.tolist() for p in layer.parameters()]]))


def test_values_equal_a_loop_over_the_formula(tmp_path: Path) -> None:
    """The oracle that the page asks for; the module is imported without registering it anywhere else."""
    done = fresh.fresh(print_values, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    x, y, entering, bias, out, shift = (np.array(each) for each in json.loads(done.stdout))
    h, expected = np.zeros(3), []
    for token in x[0]:
        gate, candidate = np.split(entering @ token + bias, 2)
        z = 1 / (1 + np.exp(-gate))
        h = (1 - z) * h + z * candidate
        expected.append(out @ h + shift)
    np.testing.assert_allclose(y[0], expected, rtol=0, atol=1e-14)


def test_a_recurrence_from_outside_goes_through_rows_in_parallel_and_steps_by_one_token(tmp_path: Path) -> None:
    """It has no line for that: the operation chooses its form by the number of tokens."""
    done = fresh.fresh(print_forms, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    whole, step = json.loads(done.stdout)
    assert whole in ("native", "operator") and step == "step"


def print_forms() -> None:
    """The forms of the recurrence, of a row of many tokens and of one token."""
    load_plugin(str(PLUGIN))
    layer, forms = sys.modules["weft_plugin_min_gru"].MinGRU(3), []
    for tokens in (64, 1):
        with OPERATIONS.observed() as seen:
            layer(torch.zeros(1, tokens, 3))
        forms += [each.form for each in seen if each.operation == "diagonal_recurrence"]
    print(json.dumps(forms))
