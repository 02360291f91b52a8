"""The phase of the fuzzer that reads spoilt files in process, many in one fork: thousands of cases a minute.

The parent makes the cases of a reader; a child reads one after the other, with limits of time and memory for each.
Where the child is ended, the case that it was at is a fault, and another child goes on with the next.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.child import BAD_WORDS, OUT_OF_TIME
from fuzz.readers import READERS, Reader, spoilt
from weft.core.errors import MissingExtra, WeftError
from weft.disk.manifest import MANIFEST_FILE

SECONDS = 10
"""Of processor time that a case may take, its files being of some kilobytes; by the clock ten times as many."""
MOST_MEMORY = 1 << 29
"""Bytes by which a case may enlarge the memory in use at its largest."""
MOST_SPACE = 3 << 30
"""Bytes of address space that a case may ask for: what it asks for beyond them it does not get."""
MEMORY_WORDS = ("MemoryError", "DefaultCPUAllocator", "std::bad_alloc", "Unable to allocate", "out of memory")
"""Of the messages of an allocation that failed, which nothing that is read may lead to."""
LONGEST = 40_000
"""Characters of an error's message."""
CASES = 200
"""Of a reader in one turn."""


@dataclass(frozen=True)
class Spoilt:
    """A case: the files of a reader's folder that are changed, by their paths in it."""

    reader: str
    files: dict[str, bytes]


@dataclass(frozen=True)
class Found:
    """A case that shows a fault, what the fault is, and more about it."""

    case: Spoilt
    fault: str
    text: str


@final
class Reading:
    """Tries spoilt files on readers and keeps those that find a fault.

    Args:
        made: where `reader_seeds.make` has written.
        scratch: an empty folder.
        kept: the folder of what is found.
    """

    def __init__(self, made: Path, scratch: Path, kept: Path) -> None:
        self._made, self._scratch, self._kept = made, scratch, kept
        self.count, self.refused = 0, Counter[str]()
        self.seen: dict[str, Path] = {}

    def turn(self, name: str, number: int) -> None:
        """`CASES` cases of one reader, which follow from ``number``."""
        cases = drawn(name, self._made / READERS[name].seeds, number)
        for found in tried(cases, self._made, self._scratch):
            self._keep(found, number)
        self.count += len(cases)

    def told(self) -> str:
        """How many cases were tried, and what they found."""
        kept = "".join(f"\n  {place}" for place in self.seen.values())
        return f"{self.count:,} files for {len(READERS)} readers, {len(self.seen)} kinds of fault{kept}"

    def _keep(self, found: Found, number: int) -> None:
        key = hashlib.sha256(f"{found.case.reader} {found.fault[:80]}".encode()).hexdigest()[:10]
        place = self._kept / f"reader-{key}"
        if key not in self.seen:
            print(f"FAULT {place}: {found.case.reader}: {found.fault[:300]}", flush=True)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            for name, content in found.case.files.items():
                (place / "files" / name).parent.mkdir(parents=True, exist_ok=True)
                (place / "files" / name).write_bytes(content)
            (place / "case.txt").write_text("\n".join([
                found.case.reader, f"seed: {number}", f"fault: {found.fault}", "", found.text]), "utf-8",
                "backslashreplace")
        self.seen.setdefault(key, place)


def drawn(name: str, folder: Path, number: int) -> list[Spoilt]:
    """Cases of a reader; the same for the same ``number``."""
    reader, cases = READERS[name], list[Spoilt]()
    names = reader.spoils or tuple(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")
                                          if path.is_file()))
    contents = {each: (folder / each).read_bytes() for each in names}

    @st.composite
    def files(draw: Any) -> dict[str, bytes]:
        chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=draw(st.sampled_from([1, 1, 1, 2])),
                               unique=True))
        return {each: spoilt(draw, each, contents[each]) for each in chosen}

    @seed(number)
    @settings(max_examples=CASES, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(found=files())
    def collect(found: dict[str, bytes]) -> None:
        cases.append(Spoilt(name, found))

    collect()
    return cases


def tried(cases: list[Spoilt], made: Path, scratch: Path, seconds: int = SECONDS) -> Iterator[Found]:
    """Read every case in children, and yield those that show a fault."""
    begin = 0
    while begin < len(cases):
        source, sink = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.close(source)
            _child(cases, begin, made, scratch / "files", os.fdopen(sink, "w"), seconds)
        os.close(sink)
        with os.fdopen(source, "r") as told:
            at, silent, faults = _followed(told, child, 10 * seconds)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        yield from (Found(cases[place], fault, text) for place, fault, text in faults)
        if silent or code:
            ended = OUT_OF_TIME if silent or code == -signal.SIGPROF else f"the process ended with {code}"
            yield Found(cases[max(at, begin)], ended, (scratch / "stderr").read_text("utf-8", "replace")[-3_000:])
            at += at < begin
        begin = at + 1


def _followed(told: IO[str], child: int, seconds: float) -> tuple[int, bool, list[tuple[int, str, str]]]:
    """Which case a child was last at, whether it was killed for its silence, and the faults that it has told."""
    at, faults, begun, silent = -1, [], "", 0
    while True:
        if not select.select([told], [], [], 1)[0]:
            silent += 1  # counted here, not by the clock: this process may be paused, as when a machine is suspended
            if silent > seconds:
                os.kill(child, signal.SIGKILL)
                return at, True, faults
            continue
        part = os.read(told.fileno(), 1 << 16).decode()
        if not part:
            return at, False, faults
        silent = 0
        *lines, begun = (begun + part).split("\n")
        for line in lines:
            at, fault, text = json.loads(line)
            faults += [(at, fault, text)] if fault else []


def _child(cases: list[Spoilt], begin: int, made: Path, folder: Path, told: IO[str], seconds: int) -> None:
    code = 1
    try:
        faulthandler.disable()  # pytest's would write into the output of the tests
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(folder.parent / "stderr", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644), 2)
        os.dup2(2, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30,) * 2)
        for place in range(begin, len(cases)):
            case = cases[place]
            print(json.dumps([place, "", ""]), file=told, flush=True)
            fault, text = observed(READERS[case.reader], case, made, folder, seconds)
            if fault:
                print(json.dumps([place, fault, text]), file=told, flush=True)
            if place % 50 == 49:
                gc.collect()
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 99
    finally:
        told.flush()
        os._exit(code)


def again(made: Path, kept: Path, folder: Path) -> int:
    """Read what was found once more, in this process and without limits; what it raises is not caught."""
    name = (kept / "case.txt").read_text("utf-8").split("\n")[0]
    reader = READERS[name]
    reader.read(_laid_out(reader, Spoilt(name, {
        path.relative_to(kept / "files").as_posix(): path.read_bytes()
        for path in (kept / "files").rglob("*") if path.is_file()}), made, folder))
    return 0


def observed(reader: Reader, case: Spoilt, made: Path, folder: Path, seconds: int) -> tuple[str, str]:
    """Read one case in this process: its fault, empty for none, and the traceback."""
    place = _laid_out(reader, case, made, folder)
    with limited(seconds), contextlib.chdir(folder):
        before = _reset_peak()
        fault, text = _read(reader, place)
        grown = _status("VmHWM") - before
    said = os.pread(2, 1 << 16, 0).decode("utf-8", "replace")
    os.ftruncate(2, 0)
    fault = fault or next((f"it prints {each!r}" for each in BAD_WORDS if each in said), "")
    if not fault and grown > MOST_MEMORY:
        fault = f"it takes {grown >> 20:,} MiB"
    return fault, f"{text}\n{said[-3_000:]}"


def _laid_out(reader: Reader, case: Spoilt, made: Path, folder: Path) -> Path:
    """The files of a case, with the seeds of its reader beside them; returns the reader's folder."""
    top = folder / Path(reader.seeds).parts[0]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made / Path(reader.seeds).parts[0], top, copy_function=os.link)
    place = folder / reader.seeds
    # A seed's own file, which the links lead to, is never written.
    changed = {**{each.relative_to(place).as_posix(): each.read_bytes() for each in place.rglob(MANIFEST_FILE)},
               **case.files}
    for name, content in changed.items():
        (place / name).unlink(missing_ok=True)
        (place / name).write_bytes(content)
    reader.seal(place)
    return place


def _read(reader: Reader, place: Path) -> tuple[str, str]:
    try:
        reader.read(place)
    except MissingExtra:
        raise
    except WeftError as error:
        message = str(error)
        words = next((each for each in MEMORY_WORDS if each in message), "")
        if words:
            return f"it asks for memory that it does not get: {words}", traceback.format_exc()
        return (f"a message of {len(message):,} characters", message[:2_000]) if len(message) > LONGEST else ("", "")
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = next((each for each in reversed(frames) if "/weft/" in each.filename), frames[-1])
        return f"{type(error).__name__} from {Path(own.filename).name}:{own.name}", traceback.format_exc()
    return "", ""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Within the block, this process may take so many seconds and `MOST_SPACE` more of address space."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + MOST_SPACE, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _reset_peak() -> int:
    """Begin to measure the largest memory in use; returns what is in use now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    """A figure of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise KeyError(name)
