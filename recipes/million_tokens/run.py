"""A million tokens in a state of fixed size: bytes, memory and seconds, and whether the cut into pieces matters.

    python recipes/million_tokens/run.py            some ten minutes on an idle machine
    python recipes/million_tokens/run.py --draw     the table and the picture from result.json

Each model of mixers.yaml, on weights as drawn, reads the same 1,048,576 tokens in pieces, in a process of its own whose
anonymous memory is sampled after every piece, and a second time in pieces of another size. Full attention is not run:
its state is counted. Writes result.json, bytes.svg and the table of README.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from weft.core.model import LanguageModel, parse_model
from weft.disk.atomic import write_file
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.ops.processor import processor_name

HERE = Path(__file__).parent
STUDY, RESULT, README = HERE / "mixers.yaml", HERE / "result.json", HERE / "README.md"
BEGIN, END = "<!-- table -->\n", "<!-- /table -->\n"
MIB = 2**20


def study() -> dict[str, Any]:
    """What is compared."""
    found: dict[str, Any] = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    return found


def study_sha256() -> str:
    """A hash of the study; comments are not among it."""
    return hashlib.sha256(json.dumps(study(), sort_keys=True).encode()).hexdigest()


def build(name: str) -> LanguageModel:
    """The model with this mixer, from the same seed."""
    settings = study()
    block = {"kind": "pre", "norm": "rmsnorm", "layers": [settings["mixers"][name], settings["feedforward"]]}
    torch.manual_seed(0)
    model = parse_model({**settings["model"], "blocks": [{"repeat": settings["blocks"], "of": [block]}]}).build()
    assert isinstance(model, LanguageModel), "the study's model is a decoder"
    return model.eval()


def state_bytes(name: str, tokens: int) -> int:
    """Bytes of a state of one row that holds so many tokens; nothing is stored for it."""
    with torch.device("meta"):
        return build(name).init_state(1, capacity=tokens).nbytes()


def lengths() -> list[int]:
    """Powers of two up to the number of tokens."""
    return [2**power for power in range(10, study()["tokens"].bit_length())]


@torch.no_grad()
def read(name: str, tokens: int, piece: int) -> dict[str, Any]:
    """What reading takes: seconds, bytes of the state before and after, memory beyond what the process had, and the
    last token's logits."""
    model = build(name)
    row = torch.randint(model.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(1))
    state = model.init_state(1)
    state = model(row[:, :piece], state).state  # what the first call loads and compiles is no part of the memory
    state, before, most, logits = model.init_state(1), memory(), 0, torch.empty(0)
    first = state.nbytes()
    begun = time.perf_counter()
    for part in row.split(piece, 1):
        out = model(part, state)
        state, logits = out.state, last(out.y)
        most = max(most, memory() - before)
    assert state is not None, "a call with a state returns one"
    return {"seconds": time.perf_counter() - begun, "state": [first, state.nbytes()], "memory": most,
            "logits": logits.tolist()}


def last(logits: Tensor) -> Tensor:
    """Those of the last token, in memory of their own."""
    return logits[0, -1].clone()


def memory() -> int:
    """Anonymous memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))


def measure() -> dict[str, Any]:
    """Of every model that is run: the figures of `read`, and the largest difference between the two cuts."""
    settings, found = study(), {}
    for name in settings["runs"]:
        one, other = (_in_process(name, settings["tokens"], settings[key]) for key in ("piece", "other_piece"))
        pairs = list(zip(one.pop("logits"), other["logits"], strict=True))
        found[name] = {**one, "difference": max(abs(a - b) for a, b in pairs), "largest": max(abs(a) for a, _ in pairs)}
        print(f"{name}: {found[name]}", flush=True)
    return found


def _in_process(name: str, tokens: int, piece: int) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, "--read", name, str(tokens), str(piece)], check=True,
                          stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def record() -> dict[str, Any]:
    """The study's figures, and what they were measured on."""
    settings = study()
    return {"study_sha256": study_sha256(), "processor": processor_name(), "threads": torch.get_num_threads(),
            "torch": torch.__version__, "date": date.today().isoformat(),
            "bytes": {name: {str(each): state_bytes(name, each) for each in lengths()} for name in settings["mixers"]},
            "runs": measure()}


def table(found: dict[str, Any]) -> str:
    """What each run took."""
    lines = ["| mixer | state, KiB | memory beside the weights, MiB | seconds | last logits differ by cut |",
             "| --- | ---: | ---: | ---: | ---: |"]
    lines += [f"| {name} | {run['state'][1] / 1024:,.1f} | {run['memory'] / MIB:,.0f} | {run['seconds']:,.0f} | "
              f"{run['difference']:.0e} of {run['largest']:.1f} |" for name, run in found["runs"].items()]
    grown = [name for name, run in found["runs"].items() if run["state"][0] != run["state"][1]]
    kept = ("Every state has as many bytes after the last token as before the first." if not grown else
            f"These states have grown: {', '.join(grown)}.")
    attention = found["bytes"]["attention"][str(study()["tokens"])]
    return "\n".join([*lines, "", f"{kept} Full attention's would have {attention / 2**30:,.1f} GiB.", "",
                      f"{found['processor']}, {found['threads']} threads, torch {found['torch']}, {found['date']}."])


def picture(found: dict[str, Any]) -> Figure:
    """Bytes of states against the length of the text."""
    curves = [Curve(name, [(int(at), size / MIB) for at, size in line.items()], index)
              for index, (name, line) in enumerate(found["bytes"].items())]
    names = ", ".join(found["bytes"])
    return chart("bytes", "State of a row", f"Bytes of the state against the tokens read, for {names}.", curves,
                 "tokens read", "MiB", scale="logarithmic", lengths=True, width=520, height=320, letters=16)


def write(found: dict[str, Any]) -> None:
    """The record, its picture and its table."""
    write_file(RESULT, json.dumps(found, indent=1) + "\n")
    write_file(HERE / "bytes.svg", picture(found).alone())
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    write_file(README, f"{before}{BEGIN}{table(found)}\n{END}{rest.partition(END)[2]}")


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="only the table and the picture, from result.json")
    parser.add_argument("--read", nargs=3, metavar=("MIXER", "TOKENS", "PIECE"), help="one run; the recipe's own use")
    given = parser.parse_args()
    if given.read:
        print(json.dumps(read(given.read[0], int(given.read[1]), int(given.read[2]))))
        return
    write(json.loads(RESULT.read_text(encoding="utf-8")) if given.draw else record())


if __name__ == "__main__":
    main()
