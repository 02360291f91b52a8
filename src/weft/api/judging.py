"""Verdicts on anything that claims to be a language model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weft.core.errors import InputError
from weft.judge.judgement import Verdict
from weft.judge.questions import Limits
from weft.judge.referee import judge_file


def judge(thing: str | Path, *, gives: str | None = None, seconds: float = 120.0, memory: int = 8 << 30,
          threads: int = 2, confined: bool = True, test_text: str | Path | None = None,
          on_law: Callable[[str], None] | None = None) -> Verdict:
    """Return a verdict on whether something is a language model: its laws, what was tried and what was found.

    Args:
        thing: a Python file, ``FILE.py`` or ``FILE.py:NAME``; the name is ``model`` if none is given.
        gives: how the output is read, ``logits``, ``log-probabilities``, ``next`` or ``scores``; None: worked out.
        seconds: of the whole verdict; laws that find no time are not tried.
        memory: bytes of addresses of the process that runs a file.
        threads: of its matrix products.
        confined: whether a file is refused where the system cannot keep it from other files and the network.
        test_text: a file with the text that it is scored on elsewhere; None: what a file claims.
        on_law: called for progress with the name of the law that begins.

    Raises:
        InputError: there is no such thing.
        UnsupportedError: this machine cannot confine a file.
    """
    name, _, call = str(thing).rpartition(":")
    path = Path(name) if name.endswith(".py") else Path(str(thing))
    if path.suffix != ".py":
        raise InputError("is no Python file.", where=str(thing), remedy="Give FILE.py or FILE.py:NAME.")
    limits = Limits(seconds=seconds, memory=memory, threads=threads, confined=confined)
    return judge_file(path, call if path != Path(str(thing)) else "model", gives=gives, limits=limits,
                      test_text=None if test_text is None else Path(test_text), on_law=on_law)
