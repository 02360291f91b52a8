"""What of an overnight loop's gains is left on new seeds, kept greedily and kept by the referee.

    python recipes/overnight/run.py --work runs/overnight

Two loops begin with the same small model (`model.py`) and are given the same random edits, one after the other:
another width, activation, norm, rate, seed and so on; two of the edits read ahead. *Greedily* an edit is kept if the
loss of one run from the loop's seed is lower than that of the design so far. *The referee* runs both from fresh seeds,
pair by pair, and asks Student's paired test (one-sided) at the looks below: at the early ones it can only give up, so
they cost power and no false alarms; it keeps the edit if the last one finds it better at the level that stands there,
and then only if `weft judge` finds the edited file lawful.

Every edit that was kept is then run again from new seeds, with the design before it, and both are measured as a model
is used: each prediction is asked of the bytes before it alone. A gain repeats where the mean of the pairs is one; the
table has the share for which the test finds one as well. All runs are kept in a file, with which an interrupted call
goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch.nn import functional as F

import weft
from weft.comparison.student import t_two_sided
from weft.data import embedded_corpus
from weft.judge.questions import FileLimits, Judged
from weft.judge.referee import judge_file

HERE = Path(__file__).parent
MODEL, RESULT, README = HERE / "model.py", HERE / "result.json", HERE / "README.md"
START: dict[str, Any] = {
    "width": 24, "layers": 1, "kernel": 2, "depthwise": True, "attention": False, "expand": 1, "gated": False,
    "norm": "none", "activation": "tanh", "residual": 0.5, "dropout": 0.1, "tied": False, "std": 1.0, "ahead": 0,
    "lr": 0.003, "warmup": 0.2, "decay": "constant", "beta": 0.999, "weight_decay": 0.1, "smoothing": 0.02, "seed": 0}
"""A plain design with much to gain: of one that edits can hardly better, nothing is kept whose share could be told."""
CHOICES: dict[str, tuple[Any, ...]] = {
    "width": (24, 32, 40, 48), "layers": (1, 2), "kernel": (2, 3, 4, 6, 8), "depthwise": (False, True),
    "attention": (False, True), "expand": (1, 2, 3), "gated": (False, True), "norm": ("none", "rms", "layer", "time"),
    "activation": ("relu", "gelu", "silu", "tanh", "relu2"), "residual": (0.5, 0.7, 1.0, 1.4),
    "dropout": (0.0, 0.1), "tied": (False, True), "std": (0.02, 0.1, 0.3, 1.0), "ahead": (0, 1),
    "lr": (0.003, 0.005, 0.007, 0.01, 0.014, 0.02), "warmup": (0.0, 0.05, 0.2),
    "decay": ("constant", "linear", "cosine"), "beta": (0.9, 0.95, 0.99, 0.999), "weight_decay": (0.0, 0.01, 0.1),
    "smoothing": (0.0, 0.02), "seed": tuple(range(10))}
PROTOCOL: dict[str, Any] = {
    "edits": 100, "steps": 60, "rows": 8, "text": 400_000, "held_out": 128, "used": 256,
    "looks": [[4, 0.5], [8, 0.2], [12, 0.01]], "new_seeds": 12, "draws": 1, "start": START,
    "choices": {name: list(values) for name, values in CHOICES.items()}}
"""Everything that the figures depend on beside the model's file: edits that are drawn; steps and rows of a run; bytes
of the text; rows that are held out, and single predictions in the measure of use; pairs after which the referee asks
its test, and the p-value above which it gives up there; new seeds."""
BEGIN, END = "<!-- tables -->\n", "<!-- /tables -->\n"

TRAINING = ("lr", "warmup", "decay", "beta", "weight_decay", "smoothing", "seed")
"""Settings that are not the model's: files of designs that differ in them alone are the same."""

Settings = Mapping[str, Any]
Run = Callable[[Settings, int], tuple[float, float]]
"""The loss of a design from a seed: as the loop reads it, and as it is used, in bits per byte."""


def protocol_sha256() -> str:
    """A hash of the protocol and of the model's file."""
    plain = json.dumps(PROTOCOL, sort_keys=True) + MODEL.read_text(encoding="utf-8")
    return hashlib.sha256(plain.encode()).hexdigest()


def text() -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes to train on, and others."""
    corpus = embedded_corpus(max_bytes=PROTOCOL["text"])
    found = "\n".join(each.text for each in corpus.documents).encode("ascii", "replace")
    ids = torch.from_numpy(np.frombuffer(found, np.uint8).astype(np.int64).copy())
    return ids[: len(ids) * 3 // 4], ids[len(ids) * 3 // 4 :]


def source(settings: Settings) -> str:
    """The model's file with a design in it, which is what the referee judges."""
    design = {name: value for name, value in settings.items() if name not in TRAINING}
    return MODEL.read_text(encoding="utf-8").replace("SETTINGS = {}", f"SETTINGS = {design!r}", 1)


def trainer() -> Run:
    """What trains a design from a seed and measures it."""
    train, test = text()
    scope: dict[str, Any] = {}
    exec(compile(source(START), str(MODEL), "exec"), scope)
    length, rows = scope["CONTEXT"], PROTOCOL["rows"]
    held = test[: PROTOCOL["held_out"] * (length + 1)].view(-1, length + 1)
    windows = test.unfold(0, length + 1, (len(test) - length - 1) // PROTOCOL["used"])[: PROTOCOL["used"]]

    def run(settings: Settings, seed: int) -> tuple[float, float]:
        torch.manual_seed(1000 * seed + 17)
        model = scope["Model"](settings)
        optimizer = torch.optim.AdamW(model.parameters(), lr=settings["lr"], betas=(0.9, settings["beta"]),
                                      weight_decay=settings["weight_decay"], fused=True)
        for step in range(PROTOCOL["steps"]):
            for group in optimizer.param_groups:
                group["lr"] = settings["lr"] * rate(settings, step / PROTOCOL["steps"])
            at = torch.randint(len(train) - length - 1, (rows, 1)) + torch.arange(length + 1)
            logits = model(train[at[:, :-1]])
            loss = F.cross_entropy(logits.flatten(0, 1), train[at[:, 1:]].flatten(),
                                   label_smoothing=settings["smoothing"])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            read = F.cross_entropy(model(held[:, :-1]).flatten(0, 1), held[:, 1:].flatten())
            used = F.cross_entropy(model(windows[:, :-1])[:, -1], windows[:, -1])
        # A run that diverged is as bad as a model that knows nothing.
        return tuple(min(float(each) / math.log(2), 7.0) if each.isfinite() else 7.0 for each in (read, used))

    return run


def rate(settings: Settings, progress: float) -> float:
    """The factor of the learning rate at a share of the steps."""
    falling = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 + 0.5 * math.cos(math.pi * progress)}
    return min(1.0, (progress + 0.01) / settings["warmup"] if settings["warmup"] else 1.0) * falling[settings["decay"]]


def kept_in(path: Path, run: Run) -> Run:
    """The same runs, each of them made once: a file has a line for each."""
    known: dict[str, tuple[float, float]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            key, *figures = json.loads(line)
            known[key] = (figures[0], figures[1])

    def found(settings: Settings, seed: int) -> tuple[float, float]:
        design = {name: value for name, value in settings.items() if name != "seed"}
        key = hashlib.sha256(f"{protocol_sha256()} {seed} {json.dumps(design, sort_keys=True)}".encode()).hexdigest()
        if key not in known:
            known[key] = run(settings, seed)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, *known[key]]) + "\n")
        return known[key]

    return found


def edits() -> list[tuple[str, int]]:
    """The edits in their order: a name, and which of its values after the present one is taken."""
    draw = random.Random(PROTOCOL["draws"])
    return [(name, draw.randrange(1, len(CHOICES[name])))
            for name in (draw.choice(sorted(CHOICES)) for _ in range(PROTOCOL["edits"]))]


def edited(settings: Settings, name: str, step: int) -> dict[str, Any]:
    """A design with one of its settings changed."""
    values = CHOICES[name]
    return {**settings, name: values[(values.index(settings[name]) + step) % len(values)]}


def greedy(run: Run) -> list[dict[str, Any]]:
    """The edits that one run from the loop's seed speaks for; another seed is an edit like any other."""
    now, kept = dict(START), []
    for name, step in edits():
        then = edited(now, name, step)
        gain = run(now, now["seed"])[0] - run(then, then["seed"])[0]
        if gain > 0:
            kept.append({"edit": name, "before": now, "after": then, "told": gain})
            now = then
    return kept


def refereed(run: Run, lawful: Callable[[Settings], bool]) -> tuple[list[dict[str, Any]], int]:
    """The edits that the referee keeps, and how many it refuses by law that its test speaks for."""
    now, kept, refused, fresh = dict(START), [], 0, 100
    for name, step in edits():
        then, gains = edited(now, name, step), []
        for pairs, level in PROTOCOL["looks"]:
            while len(gains) < pairs:
                gains.append(run(now, fresh)[0] - run(then, fresh)[0])
                fresh += 1
            if better(gains) > level:
                break
        else:
            if not lawful(then):
                refused += 1
                continue
            kept.append({"edit": name, "before": now, "after": then, "told": float(np.mean(gains))})
            now = then
    return kept, refused


def better(gains: Sequence[float]) -> float:
    """The one-sided p-value of Student's paired test that the mean of the gains is above 0."""
    deviation = float(np.std(gains, ddof=1))
    if deviation == 0:
        return 1.0
    t = float(np.mean(gains)) / deviation * math.sqrt(len(gains))
    both = t_two_sided(abs(t), len(gains) - 1)
    return both / 2 if t > 0 else 1 - both / 2


def judged(work: Path) -> Callable[[Settings], bool]:
    """Whether the referee finds the file of a design lawful; its verdicts are kept by what is in the file."""
    def lawful(settings: Settings) -> bool:
        content = source(settings)
        path = work / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.py"
        told = path.with_suffix(".json")
        if not told.exists():
            path.write_text(content, encoding="utf-8")
            limits = FileLimits(seconds=1200, answer=300)  # a busy machine is no reason to refuse a file
            told.write_text(judge_file(Judged(path), limits=limits).model_dump_json(indent=1), encoding="utf-8")
        verdict = json.loads(told.read_text(encoding="utf-8"))
        print(verdict["verdict"], [law["name"] for law in verdict["laws"] if law["outcome"] == "broken"], flush=True)
        return bool(verdict["verdict"] == "lawful")

    return lawful


def repeated(kept: Sequence[Mapping[str, Any]], run: Run) -> list[dict[str, Any]]:
    """Each edit that was kept with its gain from new seeds, as the design is used, and the test's p-value."""
    seeds, found = range(100_000, 100_000 + PROTOCOL["new_seeds"]), []
    for each in kept:
        same = {**each["before"], "seed": 0} == {**each["after"], "seed": 0}
        gains = [0.0 if same else run(each["before"], seed)[1] - run(each["after"], seed)[1] for seed in seeds]
        found.append({"edit": each["edit"], "value": each["after"][each["edit"]], "told": each["told"],
                      "gain": float(np.mean(gains)), "p": better(gains)})
    return found


def reached(settings: Settings, run: Run) -> dict[str, float]:
    """The bits per byte of a design from new seeds: as a loop reads them, and as it is used."""
    figures = np.array([run(settings, seed) for seed in range(100_000, 100_000 + PROTOCOL["new_seeds"])])
    return {"read": float(figures[:, 0].mean()), "used": float(figures[:, 1].mean()),
            "spread": float(figures[:, 1].std(ddof=1))}


def record(run: Run, lawful: Callable[[Settings], bool]) -> dict[str, Any]:
    """Both loops, their gains again, and what they reach."""
    by_greed = greedy(run)
    print(f"greedily {len(by_greed)} kept", flush=True)
    by_referee, refused = refereed(run, lawful)
    print(f"by the referee {len(by_referee)} kept, {refused} refused by law", flush=True)
    return {"protocol_sha256": protocol_sha256(), "start": reached(START, run), "refused": refused, "loops": {
        name: {"kept": repeated(kept, run), "reached": reached(kept[-1]["after"] if kept else START, run),
               "design": kept[-1]["after"] if kept else START}
        for name, kept in (("greedily", by_greed), ("by the referee", by_referee))},
        "weft": weft.__version__, "torch": torch.__version__, "python": platform.python_version()}


def tables(result: Mapping[str, Any]) -> str:
    """What stands between the marks of the page."""
    lines = ["| kept | edits | gains that repeat on new seeds | found by the test, too "
             "| bits per byte at the end, as read by the loop | as used |",
             "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, loop in result["loops"].items():
        again, tested = shares(loop["kept"])
        lines.append(f"| {name} | {len(loop['kept'])} | {again} | {tested} | {loop['reached']['read']:.3f} | "
                     f"{loop['reached']['used']:.3f} |")
    start = result["start"]
    greedy_end = result["loops"]["greedily"]["reached"]
    lines += [f"| at the beginning | | | | {start['read']:.3f} | {start['used']:.3f} |", "",
              f"What was kept greedily ends at {greedy_end['read']:.3f} bits per byte as the "
              f"loop reads them, and at {greedy_end['used']:.3f} as it is used, where "
              f"{start['used']:.3f} stood at the beginning. Of edits that its test spoke for, the referee refused "
              f"{result['refused']} by law.", ""]
    for name, loop in result["loops"].items():
        lines += [f"Kept {name}:", "", "| edit | gain told when it was kept | gain on new seeds, as used | p |",
                  "| --- | ---: | ---: | ---: |",
                  *(f"| {each['edit']} {each['value']} | {each['told']:.3f} | {each['gain']:.3f} | {each['p']:.2g} |"
                    for each in loop["kept"]), ""]
    return "\n".join(lines)


def shares(kept: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """How many of the gains repeat, and for how many the test finds one, in words, with exact 95 % intervals."""
    found = []
    for count in (sum(each["gain"] > 0 for each in kept), sum(each["p"] < 0.05 for each in kept)):
        low, high = stats.binomtest(count, len(kept)).proportion_ci() if kept else (0.0, 1.0)
        found.append(f"{count} of {len(kept)} ({count / max(len(kept), 1):.0%}; {low:.0%} to {high:.0%})")
    return found[0], found[1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, and write the result and the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--work", type=Path, default=Path("runs/overnight"), help="where the runs are kept")
    work: Path = options.parse_args(arguments).work
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    result = record(kept_in(work / "runs.jsonl", trainer()), judged(work))
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    README.write_text(f"{before}{BEGIN}{tables(result)}{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
