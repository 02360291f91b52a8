"""pytest on a copy of the source, in a process that need not import torch anew: a server has imported the packages of
others, and each trial is its fork."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path

FOREIGN = ("numpy", "torch", "torch.nn.attention.flex_attention", "torch.utils.flop_counter", "jaxtyping", "pydantic",
           "safetensors.torch", "scipy.stats", "tokenizers", "pytest", "hypothesis")
"""Imported before the fork; nothing of Weft's, and nothing that starts threads."""

LONGEST = 300.0
"""Seconds after which a trial is stopped."""

RAN = 100
"""Added to pytest's exit status by a process that came to run it; one that did not ends with less."""


def trial(source: Path, names: Sequence[str], tests: Path, *, longest: float = LONGEST) -> tuple[int, str]:
    """pytest's exit status and output for the tests ``names`` on the code in ``source``, up to the first failure; a
    negative status says that pytest did not run to its end."""
    os.environ.setdefault("TRITON_INTERPRET", "1")  # as tests/conftest.py does: PyTorch imports Triton, which reads it
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(FOREIGN))
    log = source / "output.txt"
    process = context.Process(target=_run, args=(source, list(names), tests, log))
    process.start()
    process.join(longest)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode is not None, "the process has ended"
    return process.exitcode - RAN, log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def _run(source: Path, names: list[str], tests: Path, log: Path) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(tests)
    os.environ |= {"PYTHONPATH": str(source), "HYPOTHESIS_STORAGE_DIRECTORY": str(source / ".hypothesis")}
    sys.path.insert(0, str(source))
    found = importlib.util.find_spec("weft")
    assert found is not None and str(found.origin).startswith(str(source)), f"{found} is not the copy"
    assert not any(name.split(".")[0] == "weft" for name in sys.modules), "Weft has been imported before the fork"
    import pytest

    sys.exit(RAN + pytest.main(["-n", "0", "-x", "--tb=short", "-p", "no:cacheprovider",
                                "-W", "ignore::pytest.PytestAssertRewriteWarning", *names]))
