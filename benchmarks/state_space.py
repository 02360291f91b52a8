"""S4 in rows of 2,048 to 65,536 tokens: seconds and memory, forward and backward, by form; and a step of one token.

    python benchmarks/state_space.py [--rounds 3] [--threads 2]      # on an idle machine; two minutes

One row of 64 channels with 64 numbers of state in each, float32, S4's initial values. ``powers`` and ``cauchy`` are
forms of the operation ``s4``; S4D stands beside them. Forms take turns, and seconds are medians. Peak memory is that of
a process of its own, beyond what it held before the call; the exponents say how time and memory grow over the last
doubling. A step is that of the operation alone, with a state, in a row of its own and in eight. Writes
``results/state_space.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from attention import held
from torch import Tensor

from weft.core.part_config import Dims
from weft.mixers.s4 import S4Config
from weft.mixers.s4d import S4DConfig
from weft.mixers.state_space import StateSpace
from weft.ops.forms import forced
from weft.ops.processor import processor_name
from weft.ops.ssm_chunk import Inputs

RESULTS = Path(__file__).parent / "results" / "state_space.json"
CHANNELS, STATE = 64, 64
LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536)
CASES = {"powers": {"s4": "powers"}, "cauchy": {"s4": "cauchy"}, "s4d": {}}


def layer(case: str) -> StateSpace:
    """The layer of a case; only its system is run."""
    torch.manual_seed(0)
    config = S4DConfig(d_state=STATE) if case == "s4d" else S4Config(d_state=STATE)
    built = config.build(Dims(CHANNELS))
    assert isinstance(built, StateSpace), "both are"
    return built


def row(steps: int, batch: int = 1) -> Tensor:
    """Inputs with a gradient."""
    return torch.randn(batch, steps, CHANNELS, generator=torch.Generator().manual_seed(0)).requires_grad_()


def both(case: str, steps: int) -> float:
    """Seconds of forward and backward of a fresh row."""
    system, x = layer(case), row(steps)
    leaves = [x, *system.dynamics()]
    with forced(CASES[case]):
        begun = time.perf_counter()
        y = system.system(Inputs(x, None, True, None, None))[0]
        torch.autograd.grad(y, leaves, torch.ones_like(y))
        return time.perf_counter() - begun


@torch.no_grad()
def step(case: str, batch: int, count: int = 200) -> float:
    """Microseconds of one token from a state, the median of some."""
    system, taken = layer(case), []
    state = system.carried(system.init_state(batch))
    x = row(1, batch).detach()
    for _ in range(count):
        begun = time.perf_counter()
        _, after = system.system(Inputs(x, state, False, None, None))
        taken.append(time.perf_counter() - begun)
        assert after is not None, "a call with a state has one after it"
        state = after
    return 1e6 * statistics.median(taken)


def peak(case: str, steps: int) -> int:
    """Bytes beyond what the process held before the call."""
    both(case, 256)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, see proc(5)
    before = held("VmHWM")
    both(case, steps)
    return held("VmHWM") - before


def peak_apart(case: str, steps: int) -> int:
    """`peak` in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--peak", case, str(steps), "--threads",
                           str(torch.get_num_threads())], check=True, capture_output=True, text=True)
    return int(done.stdout)


def measured(lengths: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Every case at every length, in turns."""
    taken: dict[tuple[str, int], list[float]] = {}
    for steps in lengths:
        for _ in range(rounds + 1):  # the first warms up
            for case in CASES:
                taken.setdefault((case, steps), []).append(both(case, steps))
    found = {}
    for case in CASES:
        seconds = [statistics.median(taken[case, steps][1:]) for steps in lengths]
        memory = [peak_apart(case, steps) / 2**20 for steps in lengths]
        found[case] = {"seconds": dict(zip(map(str, lengths), seconds, strict=True)),
                       "MiB": dict(zip(map(str, lengths), memory, strict=True)),
                       "grows with": {"seconds": math.log2(seconds[-1] / seconds[-2]),
                                      "MiB": math.log2(memory[-1] / memory[-2])},
                       "microseconds of a step": {str(batch): step(case, batch) for batch in (1, 8)}}
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="tokens of the longest row")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--note", default="", help="written into the results")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.peak is not None:
        print(peak(given.peak[0], int(given.peak[1])))
        return
    load = os.getloadavg()[0]
    cases = measured(tuple(each for each in LENGTHS if each <= given.longest), given.rounds)
    report = {"processor": processor_name(), "threads": given.threads, "torch": torch.__version__,
              "python": platform.python_version(), "date": datetime.date.today().isoformat(),
              "load": {"before": load, "after": os.getloadavg()[0]}, "note": given.note,
              "shape": {"channels": CHANNELS, "state": STATE}, "cases": cases}
    print(json.dumps(report, indent=1))
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
