"""A run goes on with the code that it began with, plugins' included, or says what has changed."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

import fresh
import weft
from architecture.test_import_circles import graph
from training.tiny_runs import LSTM, tiny_run
from weft.core.errors import UnsupportedError
from weft.core.registry import PACKAGES, is_loaded, load_plugin
from weft.training import Event, Notice, parse_run, train
from weft.training.code import NOT_RUN, ROOT, changes, code_of, digest, weft_code

PLUGIN = Path(__file__).parents[2] / "examples/min_gru.py"
HELPED = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
from helping import number
"""


def config(folder: Path) -> Path:
    """A run of the plugin's mixer on a file of text."""
    run = tiny_run(folder, LSTM, steps=4).dump()
    run["model"]["blocks"] = [{"kind": "pre", "layers": ["min_gru"]}]
    run["report"] |= {"eval_every": 2, "keep": 3}
    (folder / "run.json").write_text(json.dumps(run))
    return folder / "run.json"


def command(folder: Path, *arguments: str) -> fresh.Ended:
    return fresh.fresh(fresh.weft, "train", "run.json", "--out", "run", "--plugin", "average.py", *arguments,
                       folder=folder)


def test_a_changed_plugin_is_seen_and_named(tmp_path: Path) -> None:
    config(tmp_path)
    (tmp_path / "average.py").write_text(PLUGIN.read_text() + HELPED)
    (tmp_path / "helping.py").write_text("number = 1\n")
    assert (begun := command(tmp_path, "--unchecked")).returncode == 0, begun.stderr  # of laws, which take seconds
    code = json.loads((tmp_path / "run/run.json").read_text())["code"]
    assert {"average.py", "helping.py", "weft/mixers/lstm.py"} <= set(code)
    shutil.rmtree(tmp_path / "run/checkpoints/00000004")
    assert command(tmp_path, "--resume").returncode == 0, "nothing has changed"
    shutil.rmtree(tmp_path / "run/checkpoints/00000004")
    for name in ("helping.py", "average.py"):
        before = (tmp_path / name).read_text()
        (tmp_path / name).write_text(f"{before}# another\n")
        refused = command(tmp_path, "--resume")
        assert refused.returncode == 2 and "Traceback" not in refused.stderr
        told = " ".join(refused.stderr.split())
        assert f"run.json: compute: code of plugins has changed: {name} (changed); so the run cannot go on" in told
        assert "allow weights that are not those of an uninterrupted run with --allow-inexact" in told
        (tmp_path / name).write_text(before)
    (tmp_path / "average.py").write_text(f"{(tmp_path / 'average.py').read_text()}# another\n")
    allowed = command(tmp_path, "--resume", "--allow-inexact")
    assert allowed.returncode == 0 and "Going on as allowed: the weights will not be those of" in allowed.stdout
    now = json.loads((tmp_path / "run/run.json").read_text())
    assert now["code"]["average.py"] == digest(tmp_path / "average.py") != code["average.py"]
    assert [entry["step"] for entry in now["inexact"]] == [2]


def test_changed_code_of_weft_is_seen_and_named(tmp_path: Path) -> None:
    run = parse_run(tiny_run(tmp_path, LSTM).dump(), ["report.keep=1"])
    out = tmp_path / "whole"
    train(run, out)
    shutil.rmtree(out / "checkpoints/00000020")
    record = json.loads((out / "run.json").read_text())
    code = record["code"]
    for change in ({**code, "weft/mixers/lstm.py": "0" * 16}, {**code, "weft/mixers/xlstm.py": "0" * 16},
                   {name: value for name, value in code.items() if name != "weft/mixers/lstm.py"}):
        (out / "run.json").write_text(json.dumps({**record, "code": change}))
        with pytest.raises(UnsupportedError, match=r"Weft's own code has changed: weft/mixers/x?lstm\.py; so the run "
                                                   r"cannot go on to the same weights.*with --allow-inexact"):
            train(run, out, resume=True)


def test_every_file_that_training_imports_is_among_them(tmp_path: Path) -> None:
    done = fresh.fresh(print_modules, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    imported = set(json.loads(done.stdout))
    assert len(imported) > 150
    assert imported - set(weft_code()) == set()
    assert {name.split("/")[1] for name in weft_code()}.isdisjoint(NOT_RUN)
    path = ROOT / "ops/attention.py"
    assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(weft_code()["weft/ops/attention.py"])
    assert weft.__file__ == str(ROOT / "__init__.py")


def test_code_that_no_training_reaches_is_not_among_them() -> None:
    """By what the source imports, and not by what a process has loaded: a change of the server or of the referee
    refuses no resumption. Parts lie in packages that the registry imports by name."""
    source = graph(ROOT.parent)
    left = {name for name in source for package in (*PACKAGES, "training", "extending")
            if name.startswith(f"weft.{package}")}
    reached = set[str]()
    while left:
        reached |= left
        left = {other for name in left for other in source[name]} - reached
    rooms = {name.split(".")[1] for name in reached}
    assert {name.split("/")[1] for name in weft_code()} <= rooms and rooms.isdisjoint({"server", "serving", "judge"})


def print_modules() -> None:
    """Weft's files that a trained step has imported, but for those that no weights depend on."""
    train(tiny_run(Path(), LSTM, steps=1), Path("run"))
    files = [Path(str(module.__file__)).relative_to(ROOT) for name, module in sys.modules.items()
             if name.startswith("weft.") and getattr(module, "__file__", None)]
    print(json.dumps([f"weft/{file.as_posix()}" for file in files if file.parts[0] not in NOT_RUN]))


def print_code() -> None:
    """The code of a run with one of two plugins that are loaded, as it was loaded and not as it is now."""
    for name in ("one", "two"):
        Path(f"{name}.py").write_text(HELPED)
        load_plugin(f"{name}.py")
    assert is_loaded("one.py") and not is_loaded("three.py") and not is_loaded("elsewhere/one.py")
    Path("one.py").write_text(f"{HELPED}# changed since")
    run = tiny_run(Path(), LSTM)
    found = [code_of(run, plugins=plugins) for plugins in ((), ["one.py"], ["elsewhere/two.py"])] + [code_of(run)]
    print(json.dumps([{name: value for name, value in code.items() if not name.startswith("weft/")}
                      for code in found]))


def test_plugins_count_as_they_were_when_they_were_loaded_wherever_they_lie(tmp_path: Path) -> None:
    (tmp_path / "helping.py").write_text("number = 1\n")
    done = fresh.fresh(print_code, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    loaded, helping = digest(tmp_path / "two.py"), digest(tmp_path / "helping.py")
    none, one, two, both = json.loads(done.stdout)
    assert (none, one) == ({}, {"one.py": loaded, "helping.py": helping})
    assert two == {"two.py": loaded, "helping.py": helping} and both == {**one, **two}


def test_what_has_changed_in_words() -> None:
    before = {"weft/a.py": "1", "mine.py": "1", "old.py": "1"}
    now = {"weft/a.py": "2", "weft/b.py": "1", "mine.py": "2", "new.py": "1"}
    assert changes(before, before) == []
    assert changes(before, now) == [
        "Weft's own code has changed: weft/a.py, weft/b.py",
        "code of plugins has changed: mine.py (changed), new.py (not loaded then), old.py (not loaded here)"]


def test_a_run_that_begins_says_nothing_of_code(tmp_path: Path) -> None:
    told: list[Event] = []
    train(tiny_run(tmp_path, LSTM, steps=1), tmp_path / "run", on_event=told.append)
    assert not [event for event in told if isinstance(event, Notice)]
