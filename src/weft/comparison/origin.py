"""Where a study comes from, and how it can be made again: the commit of the code, how exactly its runs repeat, and its
command without the paths of one machine."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from weft.core import version
from weft.training.config import RunConfig


def commit(source: Path | None = None) -> str:
    """The commit of the checkout that Weft runs from, with ``-dirty`` where files differ from it; empty where it does
    not run from one, or git is not there.

    Args:
        source: a file of Weft's; None: of the installed one.
    """
    git, file = shutil.which("git"), source or Path(version.__file__)
    if git is None:
        return ""
    place = [git, "-C", str(file.parent)]
    try:
        subprocess.run([*place, "ls-files", "--error-unmatch", file.name], check=True, capture_output=True, timeout=10)
        said = subprocess.run([*place, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], check=True,
                              capture_output=True, text=True, timeout=10)
    except (subprocess.SubprocessError, OSError):
        return ""
    return said.stdout.strip()


def determinism(runs: Iterable[RunConfig], device: str) -> str:
    """How exactly the runs repeat, in a phrase."""
    if device == "cpu":
        return "bit for bit, on the same processor with the same versions and number of threads"
    if all(run.training.compute.repeatable for run in runs):
        return "bit for bit, on the same device with the same versions"
    return "not bit for bit: training.compute.repeatable is off, so that sums on the device may round differently"


def elsewhere(command: str) -> str:
    """A command without the absolute paths of this machine: what lies below the current folder is named from there,
    anything else by its name alone."""
    return shlex.join([_relative(word) for word in shlex.split(command)])


def _relative(word: str) -> str:
    key, sign, value = word.partition("=")
    if sign and value.startswith("/"):
        return f"{key}={_relative(value)}"
    path = Path(word)
    if not path.is_absolute():
        return word
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else path.name or "."
