"""`make mutants`: put one mistake at a time into a copy of the source, and run the tests that must see it.

    python -m mutants.run [PATTERN ...]     from tests; all mutants, or those whose names match (`attention-*`)

The checkout stays as it is. First all named tests run on the unchanged copy and must pass. Mutants then run two at a
time. A mutant is *seen* when a test fails; one whose tests all pass *survives*; *broken* says that its tests could not
be run, or did not end. Ends with 0 if every mutant was seen.
"""

from __future__ import annotations

import os
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import cache_from_source
from pathlib import Path
from typing import Literal

from mutants.mutant import SOURCE, TESTS, Mutant, read
from mutants.trial import trial

WORKERS = 2
Verdict = Literal["seen", "survives", "broken"]


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant, after how many seconds, and pytest's last words."""

    mutant: Mutant
    verdict: Verdict
    seconds: float
    output: str


def attempt(mutant: Mutant, source: Path, tests: Path = TESTS) -> Outcome:
    """Run the mutant's tests with its mistake in the copy ``source``, which is then as before."""
    path = source / "weft" / mutant.file
    healthy, start = path.read_text(encoding="utf-8"), time.monotonic()
    compiled = Path(cache_from_source(str(path)))  # names the source's size and second, which a mutant may share
    try:
        compiled.unlink(missing_ok=True)
        path.write_text(mutant.mutated(healthy), encoding="utf-8")
        status, output = trial(source, mutant.tests, tests)
    finally:
        path.write_text(healthy, encoding="utf-8")
        compiled.unlink(missing_ok=True)
    verdict: Verdict = "survives" if status == 0 else "seen" if status == 1 else "broken"
    return Outcome(mutant, verdict, time.monotonic() - start, output)


def attempt_all(mutants: Sequence[Mutant], copies: Sequence[Path]) -> Iterator[Outcome]:
    """As many at a time as there are copies, in the order in which they end."""
    free: queue.Queue[Path] = queue.Queue()
    for copy in copies:
        free.put(copy)

    def work(mutant: Mutant) -> Outcome:
        copy = free.get()
        try:
            return attempt(mutant, copy)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from (future.result() for future in as_completed([pool.submit(work, each) for each in mutants]))


def report(outcomes: Sequence[Outcome]) -> int:
    """Print what was not seen, and the slowest; the exit status."""
    for outcome in outcomes:
        if outcome.verdict != "seen":
            mutant = outcome.mutant
            print(f"\n{outcome.verdict}: {mutant.name}\n  src/weft/{mutant.file}\n  - {mutant.was}\n  + {mutant.now}\n"
                  f"  tests: {' '.join(mutant.tests)}")
            print("".join(f"  | {line}\n" for line in outcome.output.splitlines()[-15:]), end="")
    slow = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:5]
    print("\nslowest: " + ", ".join(f"{each.mutant.name} {each.seconds:.0f} s" for each in slow))
    counts = {verdict: sum(each.verdict == verdict for each in outcomes) for verdict in ("seen", "survives", "broken")}
    print(f"{len(outcomes)} mutants: {counts['seen']} seen, {counts['survives']} survive, {counts['broken']} broken")
    return 0 if counts["seen"] == len(outcomes) else 1


def chosen(patterns: Sequence[str]) -> list[Mutant]:
    """The mutants whose names match one of the patterns; all where there are none."""
    found = [each for each in read() if not patterns or any(fnmatch(each.name, pattern) for pattern in patterns)]
    trouble = [line for each in found for line in each.trouble()]
    if trouble or not found:
        sys.exit("\n".join(trouble) or f"no mutant is named so: {' '.join(patterns)}")
    return found


def main(patterns: Sequence[str]) -> int:
    mutants = chosen(patterns)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / str(worker) / "src" for worker in range(WORKERS)]
        for copy in copies:  # with the programs of the documentation beside it, as in the repository
            shutil.copytree(SOURCE, copy)
            for program in (SOURCE.parent / "docs").glob("*.py"):
                (copy.parent / "docs").mkdir(exist_ok=True)
                shutil.copy(program, copy.parent / "docs")
        names = sorted({name for mutant in mutants for name in mutant.tests})
        print(f"{len(mutants)} mutants; first their tests on the source as it is", flush=True)
        status, output = trial(copies[0], names, TESTS, longest=3600)
        if status:
            sys.exit(f"{output}\nThe tests fail without any mutant; mend that first.")
        outcomes, start = list[Outcome](), time.monotonic()
        for outcome in attempt_all(mutants, copies):
            outcomes.append(outcome)
            left = (time.monotonic() - start) / len(outcomes) * (len(mutants) - len(outcomes)) / 60
            print(f"{len(outcomes):4}/{len(mutants)}  {outcome.verdict:8} {outcome.seconds:5.1f} s  "
                  f"{outcome.mutant.name}  ({left:.0f} min left)", flush=True)
        return report(outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
