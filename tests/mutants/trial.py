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


def trial(source: Path, names: Sequence[str], tests: Path, *, longest: float = LONGEST) -> tuple[int, str]:
    """pytest's exit status and output for the tests ``names`` on the code in ``source``, up to the first failure; a
    negative status is a signal."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(FOREIGN))
    log = source / "output.txt"
    process = context.Process(target=_run, args=(source, list(names), tests, log))
    process.start()
    process.join(longest)
    if process.is_alive():
        process.kill()
        process.join()
    status = process.exitcode
    assert status is not None, "the process has ended"
    return status, log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def _run(source: Path, names: list[str], tests: Path, log: Path) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(tests)
    os.environ |= {"PYTHONPATH": str(source), "HYPOTHESIS_STORAGE_DIRECTORY": str(source / ".hypothesis")}
    sys.path.insert(0, str(source))
    found = importlib.util.find_spec("weft")
    if found is None or not str(found.origin).startswith(str(source)):
        sys.exit(f"not the copy: {found}")
    import pytest

    sys.exit(pytest.main(["-n", "0", "-x", "--tb=short", "-p", "no:cacheprovider",
                          "-W", "ignore::pytest.PytestAssertRewriteWarning", *names]))
