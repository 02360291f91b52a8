"""`make fuzz`: hostile files and options; nothing may crash, hang, take much memory, or end in a traceback.

    PYTHONPATH=tests python -m fuzz      FUZZ_MINUTES (60) says for how long, FUZZ_SEED where the cases begin,
                                         FUZZ_PHASES (commands,readers) what is tried, each for its share of the time
    PYTHONPATH=tests python -m fuzz fuzz_found/reader-NAME      read what was found once more, in this process

Commands: each case is a whole command line, run in a process of its own with limits of time and memory. A case that
finds a fault is made smaller by hypothesis. Readers: see `fuzz.reading`. What is found is kept in ``fuzz_found/NAME``
(FUZZ_FOUND names another folder), with what it said and how to run it again. Ends with 0 if nothing was found.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import final

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky

from fresh import PRELOADED
from fuzz import reader_seeds, seeds
from fuzz.cases import Case, cases
from fuzz.child import OUT_OF_TIME, Ended, run
from fuzz.readers import READERS
from fuzz.reading import Reading, again

SECONDS = 40.0
"""Of processor time that a case may take; `check` takes five, most take less than one."""
FOUND = Path(os.environ.get("FUZZ_FOUND", "fuzz_found"))


@final
class Fuzzer:
    """Runs cases and keeps those that find a fault.

    Args:
        made: the folder of the seeds.
        scratch: a folder for the cases.
    """

    def __init__(self, made: Path, scratch: Path) -> None:
        self._made, self._scratch = made, scratch
        self.count, self.kinds, self.seen = 0, Counter[str](), dict[str, Path]()
        self.known: set[str] = set()

    def try_case(self, case: Case) -> str:
        """Run a case; the fault that it finds, empty for none and for those of earlier sessions."""
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            work = folder / "work"
            lay_out(self._made, case, work)
            ended = run(lambda: command(case.arguments), work, SECONDS)
            self.count += 1
            self.kinds[case.arguments[0]] += 1
            return self._keep(case, ended) if ended.fault else ""
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def told(self) -> str:
        """How many cases were tried, and what they found."""
        kinds = ", ".join(f"{name} {count}" for name, count in self.kinds.most_common())
        kept = "".join(f"\n  {place}" for place in self.seen.values())
        return f"{self.count:,} cases ({kinds}), {len(self.seen)} kinds of fault{kept}"

    def _keep(self, case: Case, ended: Ended) -> str:
        """Write the case down, over a longer one that ended alike."""
        last = next((line for line in reversed(ended.text.splitlines()) if line.strip()), "")
        key = hashlib.sha256(f"{ended.fault}{last.split('(details')[0][:80]}".encode()).hexdigest()[:10]
        place = FOUND / key
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name, content in case.files.items():
            if content is not None:
                (place / name.replace("/", "__")).write_bytes(content)
        details = last.partition("(details in ")[2].rstrip(")")
        more = Path(details).read_text("utf-8") if details and Path(details).exists() else ""
        (place / "case.txt").write_text("\n".join([
            f"weft {shlex.join(case.arguments)}", f"spoilt: {sorted(case.files)}", f"fault: {ended.fault}", "",
            ended.text, more]), "utf-8", "backslashreplace")
        if key not in self.seen:
            line = shlex.join(case.arguments)[:300]
            print(f"FAULT {key}: {ended.fault}: weft {line}\n      {last[:300]}", flush=True)
        self.seen[key] = place
        # What does not end is not made smaller, which would take as long for each attempt.
        return "" if key in self.known or ended.fault == OUT_OF_TIME else ended.fault


def lay_out(made: Path, case: Case, folder: Path) -> None:
    """Copies of the seeds, with a case's own files in the place of some."""
    shutil.copytree(made, folder, copy_function=shutil.copyfile)
    for name, content in case.files.items():
        path = folder / name
        path.unlink()
        if content is None:
            os.mkfifo(path)
        else:
            path.write_bytes(content)


def command(arguments: tuple[str, ...]) -> None:
    """The command line, as the script ``weft`` runs it."""
    from weft.cli.main import run as weft

    sys.argv = ["weft", *arguments]
    weft()


def session(fuzzer: Fuzzer, number: int) -> Callable[[], None]:
    """Some hundred cases of one seed, those with a fault made smaller."""

    @seed(number)
    @settings(max_examples=200, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
              suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
    @given(case=cases(fuzzer._made))
    def tried(case: Case) -> None:
        assert not fuzzer.try_case(case)

    return tried


def commands(made: Path, scratch: Path, until: float, number: int) -> bool:
    """Try commands until the time is up; whether no fault was found."""
    fuzzer = Fuzzer(made / "commands", scratch)
    while time.monotonic() < until:
        try:
            session(fuzzer, number)()
        except (AssertionError, Flaky):  # flaky: a fault that is not found again, and is kept all the same
            print(f"a fault in the cases of seed {number}", flush=True)
        fuzzer.known.update(fuzzer.seen)
        number += 1
        print(fuzzer.told(), flush=True)
    return not fuzzer.seen


def readers(made: Path, scratch: Path, until: float, number: int) -> bool:
    """Try readers, one after the other, until the time is up; whether no fault was found."""
    reading, began = Reading(made / "readers", scratch, FOUND), time.monotonic()
    for name in itertools.cycle(READERS):
        if time.monotonic() > until:
            break
        reading.turn(name, number)
        if name == list(READERS)[-1]:
            number += 1
            print(f"{reading.told()}, {(time.monotonic() - began) / 60:.0f} minutes", flush=True)
    print(reading.told(), flush=True)
    return not reading.seen


PHASES: dict[str, Callable[[Path, Path, float, int], bool]] = {"commands": commands, "readers": readers}


def make(made: Path, phases: list[str]) -> None:
    """Write the seeds of the phases."""
    for name in ("commands", "readers"):
        (made / name).mkdir(parents=True)
    seeds.make(made / "commands")
    if "readers" in phases:
        reader_seeds.make(made / "readers", made / "commands")


def main() -> int:
    """Fuzz until the time is up."""
    minutes, number = float(os.environ.get("FUZZ_MINUTES", "60")), int(os.environ.get("FUZZ_SEED", time.time()))
    phases = os.environ.get("FUZZ_PHASES", "commands,readers").split(",")
    torch.set_num_threads(1)
    for name in PRELOADED:
        __import__(name)
    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as scratch:
        made = Path(scratch) / "seeds"
        made.mkdir()
        # In a process of its own: a process that has computed gradients has threads, whose forks cannot compute any.
        made_well = run(lambda: make(made, phases), made, 600)
        assert not made_well.fault, made_well
        if len(sys.argv) > 1:
            return again(made / "readers", Path(sys.argv[1]), Path(scratch) / "again")
        print(f"seed {number}, {minutes:g} minutes of {' and '.join(phases)}", flush=True)
        sound = []
        for name in phases:
            (Path(scratch) / name).mkdir()
            until = time.monotonic() + 60 * minutes / len(phases)
            sound.append(PHASES[name](made, Path(scratch) / name, until, number))
    return 0 if all(sound) else 1


if __name__ == "__main__":
    raise SystemExit(main())
