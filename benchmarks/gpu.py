"""All figures on one GPU, in under nine minutes: `results/gpu.json`.

    python benchmarks/gpu.py [--only training attention/window ...] [--budget SECONDS] [--out FILE] [--again]

Sections: the card itself; attention; operations by their forms; steps of training beside other libraries; tokens a
second by length; decoding; memory planned and measured; contestants one after another and side by side. The file is
written after each figure. A figure that stands in it with the same card, PyTorch and sources of Weft is not taken again
unless ``--again`` is given (``--any-source``: whatever the sources were). A figure is begun only where the time that is
left of ``--budget`` is at least what it is stated to take; those that are not taken are named in the file, with why.
``--site FOLDER`` names a folder with packages of others, such as `fla`. ``--list`` prints the figures. With ``--tiny``
everything is small enough for a processor, to try it.

Each section runs in a process of its own, forked after the imports, which take ten seconds; what ends that process
costs one figure, and the section goes on in another.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/gpu.json"
MODULES = ("gpu_operations", "gpu_training", "gpu_lengths", "gpu_decoding")
ORDER = ("card", "training", "attention", "operations", "decoding", "lengths", "plan", "compare")
PATIENCE, LEAST_PATIENCE = 4, 90
"""A figure that takes so many times its stated seconds, and at least so many seconds, is ended."""


@dataclass
class Results:
    """The file of results.

    Attributes:
        figures: by name, each with the card, PyTorch, sources, date and seconds.
        not_taken: why, by name.
    """

    path: Path
    figures: dict[str, Any] = field(default_factory=dict)
    not_taken: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Results:
        """What an earlier call has left."""
        found = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return Results(path, found.get("figures", {}), found.get("not taken", {}))

    def took(self, name: str, value: Any) -> None:
        """Keep a figure."""
        self.figures[name] = value
        self.not_taken.pop(name, None)
        self._write()

    def missed(self, name: str, why: str) -> None:
        """Keep why a figure was not taken; one that stands from before stays, with what it says of itself."""
        self.not_taken[name] = why
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps({"figures": self.figures, "not taken": self.not_taken}, indent=1) + "\n", "utf-8")
        os.replace(beside, self.path)


def card_name() -> str:
    """The first card's name as its driver gives it; nothing without one. PyTorch is not asked: a process that has
    called CUDA cannot be forked."""
    try:
        found = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                               text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.splitlines()[0].strip() if found.strip() else ""


def sources() -> str:
    """A hash of Weft's sources: the results, whose commit would change it, are not among them."""
    whole = hashlib.sha256()
    for path in sorted((ROOT / "src/weft").rglob("*")):
        if path.suffix in (".py", ".c", ".h"):
            whole.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()[:16]


def commit() -> str | None:
    """The commit of the working tree; None outside of a repository."""
    try:
        return subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def circumstances(tiny: bool) -> dict[str, Any]:
    """Of a figure: what is recorded with it, the first three of which decide whether it stands."""
    return {"card": "a processor, tiny" if tiny else card_name(), "torch": importlib.metadata.version("torch"),
            "sources": sources(), "commit": commit(), "date": datetime.date.today().isoformat()}


def stands(found: Mapping[str, Any] | None, now: Mapping[str, Any], any_source: bool) -> bool:
    """Whether a figure need not be taken again."""
    return found is not None and all(found.get(key) == now[key] for key in ("card", "torch", "sources")
                                     if not (any_source and key == "sources"))


def all_figures() -> dict[str, Any]:
    """Every figure by name, in the order in which they are taken."""
    found: dict[str, Any] = {}
    for module in MODULES:
        if (ROOT / "benchmarks" / f"{module}.py").exists():
            found |= importlib.import_module(module).FIGURES
    return {name: found[name] for section in ORDER for name in found if name.partition("/")[0] == section}


def chosen(figures: Mapping[str, Any], only: Sequence[str]) -> list[str]:
    """The names that ``only`` names, whole or by their beginnings."""
    wrong = [each for each in only if not any(under(name, each) for name in figures)]
    if wrong:
        raise SystemExit(f"no figure is called {wrong[0]!r}; there are: {', '.join(figures)}")
    return [name for name in figures if not only or any(under(name, each) for each in only)]


def under(name: str, given: str) -> bool:
    """Whether a figure is that, or one of that section."""
    return name == given or name.startswith(given + "/")


def taken_by_child(pipe: Connection, names: Sequence[str], known: Mapping[str, Any], tiny: bool, until: float,
                   log: Path) -> None:
    """In a process of its own: take figures and send what comes of them."""
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import torch
    from gpu_timing import emptied, why

    figures, found = all_figures(), dict(known)
    for name in names:
        left = until - time.monotonic()
        if figures[name].seconds > left:
            pipe.send(("left", name, f"{figures[name].seconds:.0f} s stated, and {max(left, 0):.0f} s were left"))
            continue
        pipe.send(("begun", name, None))
        begun = time.monotonic()
        try:
            value = figures[name].take(tiny, found)
        except Exception as error:  # a figure's failure costs that figure
            pipe.send(("failed", name, why(error)))
        else:
            found[name] = value
            pipe.send(("took", name, {"value": value, "seconds": round(time.monotonic() - begun, 1)}))
        torch.compiler.reset()  # which keeps only so many graphs of one function
        emptied()
    pipe.send(("done", "", None))


class Section:
    """Takes the figures of a section in processes, and keeps what comes of them."""

    def __init__(self, results: Results, now: Mapping[str, Any], tiny: bool, until: float) -> None:
        self.results, self.now, self.tiny, self.until = results, now, tiny, until

    def take(self, names: Sequence[str]) -> None:
        """Take them; after a process that ends too early, the others in another one."""
        left = list(names)
        while left:
            left = self._follow(left)

    def _follow(self, names: list[str]) -> list[str]:
        """Follow one process; return what it has not come to."""
        known = {name: each["value"] for name, each in self.results.figures.items()}
        mine, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=taken_by_child, args=(
            theirs, names, known, self.tiny, self.until, self.results.path.with_suffix(".log")))
        process.start()
        theirs.close()
        seconds = {name: each.seconds for name, each in all_figures().items()}
        now = ""
        for kind, name, what in messages(mine, seconds):
            if kind == "begun":
                now = name
                continue
            if kind in ("took", "failed", "left"):
                self._keep(kind, name, what)
                names, now = [each for each in names if each != name], ""
            elif kind == "silent":
                process.kill()
                self._keep("failed", now or names[0], f"ended after {patience(seconds[now or names[0]]):.0f} s")
            elif kind == "gone":
                process.join()
                self._keep("failed", now or names[0], f"its process ended with {process.exitcode}")
            if kind in ("silent", "gone"):
                process.join()
                return [each for each in names if each != (now or names[0])]
        process.join()
        return []

    def _keep(self, kind: str, name: str, what: Any) -> None:
        if kind == "took":
            self.results.took(name, {**self.now, **what})
        else:
            self.results.missed(name, str(what))
        shown = json.dumps(what["value"] if kind == "took" else what)
        print(f"{kind} {name}: {shown if len(shown) < 900 else shown[:900] + ' ...'}", flush=True)


def patience(stated: float) -> float:
    """Seconds after which a figure is ended."""
    return max(LEAST_PATIENCE, PATIENCE * stated)


def messages(pipe: Connection, seconds: Mapping[str, float]) -> Iterator[tuple[str, str, Any]]:
    """What a process sends until it is done; ``silent`` where nothing comes for too long, ``gone`` where it ended."""
    stated = 0.0
    while True:
        if not pipe.poll(patience(stated)):
            yield "silent", "", None
            return
        try:
            message = pipe.recv()
        except EOFError:
            yield "gone", "", None
            return
        if message[0] == "done":
            return
        stated = seconds[message[1]] if message[0] == "begun" else 0.0
        yield message


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="sections or figures")
    parser.add_argument("--budget", type=float, default=540, help="seconds, the imports among them")
    parser.add_argument("--again", action="store_true", help="also figures that stand")
    parser.add_argument("--any-source", action="store_true", help="figures of other sources of Weft stand")
    parser.add_argument("--tiny", action="store_true", help="on a processor, to try it")
    parser.add_argument("--list", action="store_true", help="print the figures and their seconds")
    parser.add_argument("--site", type=Path, help="a folder with packages of others")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    """Take what is asked for and does not stand."""
    begun, given = time.monotonic(), arguments()
    sys.path[:0] = [str(ROOT / "src"), *([str(given.site.resolve())] if given.site else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2 if given.site else 1], os.environ.get("PYTHONPATH", "")])
    if given.tiny:
        os.environ["TORCH_COMPILE_DISABLE"] = "1"  # a compiler of C++ takes minutes
    figures, now = all_figures(), circumstances(given.tiny)
    names = chosen(figures, given.only)
    if given.list:
        print("\n".join(f"{figures[name].seconds:4.0f} s  {name}" for name in names))
        return
    if not now["card"]:
        raise SystemExit("there is no NVIDIA GPU here (nvidia-smi names none). --tiny tries everything on a processor.")
    results = Results.read(given.out)
    due = [name for name in names if given.again or not stands(results.figures.get(name), now, given.any_source)]
    print(f"{now['card']}, torch {now['torch']}, sources {now['sources']}: {len(due)} of {len(names)} figures are due",
          flush=True)
    section = Section(results, now, given.tiny, begun + given.budget)
    for each in dict.fromkeys(name.partition("/")[0] for name in due):
        section.take([name for name in due if under(name, each)])
    print(f"{time.monotonic() - begun:.0f} s; not taken: {', '.join(results.not_taken) or 'none'}")


if __name__ == "__main__":
    main()
