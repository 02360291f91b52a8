"""`make test-processors`: the tests as other processors and other numbers of threads would run them.

    python -m processors [WORKERS]      from tests; 2 processes at a time unless another number is given

Libraries choose their kernels by the processor's instructions, and sums in another order end in other bits. Here torch,
oneDNN, MKL and Weft's own code are held to older instructions together, as on the processor that a setting stands for,
each on another number of threads, and the folders whose results depend on arithmetic run under each; the whole suite
runs once, on one thread, as it is. Where the suite asks for equal bits (a run resumed, a state saved and read, the same
call twice), they must be equal under every setting; elsewhere tolerances hold. A setting can be narrowed by hand to one
library: `ATEN_CPU_CAPABILITY=avx2 pytest tests/ops`.

Printed beside each setting: digits of a product in float32, of a linear map in bfloat16 and of an exponential, which
show whether the setting reached the library. A setting beyond this processor's instructions is left out, and the output
names it. Ends with 0 if all tests passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

TESTS = Path(__file__).parent
ARITHMETIC = ("analysis", "benchmarks", "blocks", "chat", "checkpoints", "comparison", "decoding", "evaluation",
              "extending", "families", "feedforward", "heads", "integration", "interop", "judge", "laws", "linear",
              "masks", "mixers", "models", "ngram", "norms", "ops", "oracles", "parallel", "pictures", "positions",
              "serving", "tasks", "training")
"""Folders whose tests compute with floating-point numbers."""

OTHERS = ("api", "architecture", "cli", "confinement", "core", "data", "disk", "docs", "drawing", "examples", "fuzz",
          "gpu", "index", "mutants", "recipes", "server", "tokenizers")
"""Folders that run once."""

CAPABILITIES = ("DEFAULT", "AVX2", "AVX512")
"""What torch calls the instructions it uses, each with all before it."""

SETTINGS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("DEFAULT", {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
                 "WEFT_CPU_CAPABILITY": "baseline"}),
    ("AVX2", {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
              "WEFT_CPU_CAPABILITY": "avx2",
              "OMP_NUM_THREADS": "2", "MKL_DYNAMIC": "FALSE", "OMP_WAIT_POLICY": "PASSIVE"}),
    ("AVX512", {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "WEFT_CPU_CAPABILITY": "avx512",
                "OMP_NUM_THREADS": "4", "MKL_DYNAMIC": "FALSE", "OMP_WAIT_POLICY": "PASSIVE"}),
)
"""What the processor must be able to do, and the variables of a setting: torch's own kernels without vector
instructions; a processor with AVX2, on two threads; one with AVX-512 but no instructions for bfloat16, on four. Left to
itself MKL takes no more threads than there are cores, and torch as many as MKL; threads that wait must not hold cores
that others need."""

DIGITS = """
import torch
torch.manual_seed(0)
a, b = torch.randn(96, 512), torch.randn(512, 96)
numbers = a @ b, torch.nn.functional.linear(a.bfloat16(), b.t().bfloat16()), a.exp()
print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(),
      *(f"{n.double().mul(torch.arange(n.numel()).view(n.shape) % 97).sum().item():.17g}" for n in numbers))
"""


def environment(setting: Mapping[str, str]) -> dict[str, str]:
    """One thread and no setting but this one."""
    names = {name for _, variables in SETTINGS for name in variables}
    return {**{name: value for name, value in os.environ.items() if name not in names}, "OMP_NUM_THREADS": "1",
            **setting}


def numbers(setting: Mapping[str, str]) -> str:
    """Torch's instructions and threads, and the digits of three results."""
    return subprocess.run([sys.executable, "-c", DIGITS], env=environment(setting), check=True, text=True,
                          stdout=subprocess.PIPE).stdout.strip()


def possible() -> Iterator[tuple[Mapping[str, str], bool]]:
    """The settings, and whether this processor has the instructions."""
    name = numbers({}).split()[0]
    best = CAPABILITIES.index(name) if name in CAPABILITIES else 0
    for needed, setting in SETTINGS:
        yield setting, CAPABILITIES.index(needed) <= best


def run(setting: Mapping[str, str], folders: tuple[str, ...], workers: str) -> tuple[int, float]:
    """pytest's exit status, and the seconds it took; without folders the whole suite."""
    start = time.monotonic()
    # Threads of several processes that wait for one another on busy cores cost more than they give.
    workers = "0" if int(setting.get("OMP_NUM_THREADS", "1")) > 1 else workers
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "--dist", "loadfile", "--no-loadscope-reorder",
               "-p", "no:cacheprovider", *folders]
    with tempfile.TemporaryDirectory() as compiled:
        # The compiler keeps what it has written for one processor, and under another setting takes it for its own.
        variables = {**environment(setting), "TORCHINDUCTOR_CACHE_DIR": compiled}
        status = subprocess.run(command, cwd=TESTS.parent, env=variables, check=False).returncode
    return status, time.monotonic() - start


def label(setting: Mapping[str, str]) -> str:
    """The instructions of torch, oneDNN and MKL, and the number of threads."""
    if not setting:
        return "as it is, the whole suite"
    libraries = {"torch": "ATEN_CPU_CAPABILITY", "oneDNN": "ONEDNN_MAX_CPU_ISA", "MKL": "MKL_ENABLE_INSTRUCTIONS"}
    held = [f"{name} {setting[variable].lower()}" for name, variable in libraries.items() if variable in setting]
    return ", ".join([*held, f"threads {setting.get('OMP_NUM_THREADS', '1')}"])


def main(workers: str) -> int:
    rows, failed = [], 0
    for setting, can in [({}, True), *possible()]:
        name = label(setting)
        if not can:
            rows.append(f"{name:44} left out: this processor has not the instructions")
            continue
        print(f"\n== {name}: {numbers(setting)}", flush=True)
        status, seconds = run(setting, tuple(f"tests/{name}" for name in ARITHMETIC) if setting else (), workers)
        failed += status != 0
        rows.append(f"{name:44} {'green' if status == 0 else 'RED':5} {seconds / 60:5.1f} min  {numbers(setting)}")
    print("\n" + "\n".join(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "2"))
