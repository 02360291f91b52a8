"""Measures of the house that nothing else holds: each has a ceiling that is what is reached, and only falls.

Whoever lowers a measure lowers its ceiling with it; a change that would raise one finds another way.
"""

from __future__ import annotations

import ast
import secrets
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import weft
from architecture.sources import parsed, walked
from architecture.test_import_circles import graph
from weft.core.layer import Layer
from weft.mixers.base import MixerConfig
from weft.tasks import Task, TaskConfig
from weft.tokenizers.base import Tokenizer
from weft.training.config import RunConfig

SOURCE = Path(weft.__path__[0])
ROOT = SOURCE.parents[1]
SERVING = ("serving", "server", "cli/serve.py")
"""What came after the ceilings of the whole house were set, and has ceilings of its own."""
ON_GPU = ("gpu/", "ops/triton/", "analysis/gpu_speed.py")
"""The kernels for GPUs and what runs on one need besides, likewise; sources of kernels are named as their forms are."""
NEW = ("comparison/ladder", "comparison/rungs.py", "comparison/report/ladder_page.py", "api/predict", "cli/predict.py",
       "data/record_files.py")
"""Studies over budgets and predictions for files, likewise: rooms that were built when the house had become smaller."""
CEILINGS = {
    "modules behind weft.mixers.lstm": 25, "modules behind weft.mixers.attention": 35,
    "modules behind weft.mixers.mamba": 29, "classes": 1203, "names of classes with several homes": 5,
    "names to override on a mixer": 12, "names to override on a task": 13, "names to override on a tokenizer": 12,
    "names of files with several homes": 42, "percent of files under 60 lines": 10, "hundred lines": 1091,
    "lines of mixers": 5188, "lines of a recurrence from outside": 52, "lines to read before it": 227,
    "hundred lines of serving": 57, "classes of serving": 94, "hundred lines of the room for GPUs": 41,
    "classes of the room for GPUs": 20, "hundred lines of new rooms": 13, "classes of new rooms": 9}


@cache
def modules() -> dict[str, set[str]]:
    return graph(SOURCE.parent)


def behind(module: str) -> int:
    """Modules that an import of a module comes to, itself among them; of those inside functions too."""
    found, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += modules()[name]
    return len(found)


def lines(*paths: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def overridable(*classes: type) -> set[str]:
    """The public names that the bases of a part offer to whoever writes one: all that are not marked as final."""
    bodies = [vars(base) for each in classes for base in each.__mro__ if base.__module__.startswith("weft.")]
    names = {name for body in bodies for name in (*body, *body.get("__annotations__", ()))}
    final = {name for body in bodies for name, value in body.items() if getattr(value, "__final__", False)}
    return {name for name in names - final if not name.startswith(("_", "model_"))}


@cache
def measured() -> dict[str, int]:
    files = sorted(SOURCE.rglob("*.py"))
    homes: defaultdict[str, list[Path]] = defaultdict(list)
    for path in files:
        for node in walked(parsed(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path)
    lengths = [lines(path) for path in files]
    served, on_gpu, new = ({path for path in files if path.relative_to(SOURCE).as_posix().startswith(room)}
                           for room in (SERVING, ON_GPU, NEW))
    named = Counter(path.name for path in files if path.name != "__init__.py" and path not in on_gpu)
    mixers = {f"modules behind weft.mixers.{name}": behind(f"weft.mixers.{name}")
              for name in ("lstm", "attention", "mamba")}
    parts = {"mixer": (Layer, MixerConfig), "task": (Task, TaskConfig), "tokenizer": (Tokenizer,)}
    names = {f"names to override on a {part}": len(overridable(*classes)) for part, classes in parts.items()}
    outside = {"lines of mixers": lines(*(SOURCE / "mixers").glob("*.py")),
               "lines of a recurrence from outside": lines(ROOT / "examples/min_gru.py"),
               "lines to read before it": lines(ROOT / "docs/add_a_part.md", SOURCE / "core/recurrent_layer.py")}
    return mixers | names | outside | {
        "classes": sum(path not in served | on_gpu | new for paths in homes.values() for path in paths),
        "classes of the room for GPUs": sum(path in on_gpu for paths in homes.values() for path in paths),
        "hundred lines of the room for GPUs": lines(*on_gpu) // 100,
        "classes of serving": sum(path in served for paths in homes.values() for path in paths),
        "hundred lines of serving": lines(*served) // 100,
        "classes of new rooms": sum(path in new for paths in homes.values() for path in paths),
        "hundred lines of new rooms": lines(*new) // 100,
        "names of classes with several homes": sum(len(set(paths)) > 1 for paths in homes.values()),
        "names of files with several homes": sum(count > 1 for count in named.values()),
        "percent of files under 60 lines": round(100 * sum(lines < 60 for lines in lengths) / len(lengths)),
        "hundred lines": (sum(lengths) - lines(*served, *on_gpu, *new)) // 100}


@pytest.mark.parametrize("measure", CEILINGS)
def test_measures_of_the_source_only_fall(measure: str) -> None:
    assert measured()[measure] <= CEILINGS[measure], "a measure that has risen"


def test_ceilings_are_what_is_reached() -> None:
    """So that what has been won is kept."""
    assert {name: most - measured()[name] for name, most in CEILINGS.items() if most > 1.02 * measured()[name]} == {}


def own_calls(run: Callable[[], Any]) -> Counter[str]:
    """Names of Weft's own functions that a call comes to."""
    found: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            found[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def small_run(text: Path) -> dict[str, Any]:
    """Two layers on a text of its own, for two steps."""
    layers = [{"kind": "attention", "n_heads": 2, "position": "rope"}, {"kind": "glu"}]
    return {"model": {"kind": "decoder", "vocab_size": 257, "d_model": 16, "context": 32, "norm": "rmsnorm",
                      "blocks": [{"repeat": 2, "of": [{"kind": "pre", "layers": layers}]}]},
            "data": {"path": str(text)},
            "training": {"steps": 2, "batch_size": 2, "compute": {"matmul": "default"}}}


@pytest.mark.parametrize(("command", "ceiling"), [("plan", 7_800), ("train", 7_200)])
def test_a_small_plan_and_a_small_run_come_to_few_functions(command: str, ceiling: int, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat. " * 400, encoding="utf-8")
    config = RunConfig.model_validate(small_run(text))
    runs: dict[str, Callable[[], Any]] = {"plan": lambda: weft.plan(config),
                                          "train": lambda: weft.train(config, out=tmp_path / secrets.token_hex(4))}
    runs[command]()  # what is imported and read once in a process does not count
    found = own_calls(runs[command])
    assert found.total() <= ceiling, found.most_common(15)
