"""A process of a module that imports little, which is given lines and gives lines back, within a time and a size."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

SOURCE = Path(__file__).parents[2]
"""The folder that the package lies in."""


@final
class ConfinedProcess:
    """A Python process in a session of its own, without Weft's environment, errors written nowhere.

    Args:
        module: whose ``main`` it runs.
        paths: folders that it imports from besides Weft's and Python's own.
        environment: variables besides those that every such process has.
        watch: called each second in which it says nothing; what it raises ends the waiting.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, module: str, arguments: Sequence[object], paths: Sequence[str] = (),
                 environment: Mapping[str, str] | None = None, watch: Callable[[], None] = lambda: None) -> None:
        begins = f"import sys; sys.path += {[str(SOURCE), *paths]!r}; from {module} import main; main()"
        own = {"LANG": "C.UTF-8", "PATH": os.defpath, "PYTHONHASHSEED": "0", "HOME": os.sep, **(environment or {})}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", begins, *map(str, arguments)], cwd=os.sep,
            env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            start_new_session=True)
        assert self._process.stdin is not None and self._process.stdout is not None, "pipes were asked for"
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        self._read, self._watch = bytearray(), watch

    def send(self, content: bytes) -> None:
        """Give it the first bytes, which its pipe takes at once, and wait for nothing."""
        with suppress(BrokenPipeError):
            os.write(self._input.fileno(), content)

    def exchange(self, content: bytes, until: float, most: int) -> bytes:
        """Give it some bytes, and return the next line that it writes; b"" if it has ended.

        Args:
            until: by `time.monotonic`.
            most: bytes of the line.

        Raises:
            TimeoutError: the time is up.
            OverflowError: the line is longer.
        """
        rest = memoryview(content)
        while b"\n" not in self._read:
            rest, ended = self._moved(rest, until)
            if ended:
                return b""
            if len(self._read) > most:
                raise OverflowError
        line, _, self._read = self._read.partition(b"\n")
        return bytes(line)

    def take(self, count: int, until: float) -> bytes:
        """Return the next ``count`` bytes that it writes, fewer if it ends before.

        Raises:
            TimeoutError: the time is up.
        """
        ended = False
        while len(self._read) < count and not ended:
            _, ended = self._moved(memoryview(b""), until)
        taken = bytes(self._read[:count])
        del self._read[:count]
        return taken

    def _moved(self, rest: memoryview, until: float) -> tuple[memoryview, bool]:
        """Write what the pipe takes of ``rest`` and read what there is; what is left to write, and whether it has
        ended."""
        left = until - time.monotonic()
        readable, writable, _ = select.select([self._output], [self._input] if rest else [], [], min(max(left, 0), 1))
        if left <= 0:
            raise TimeoutError
        if not (readable or writable):
            self._watch()
        if writable:
            with suppress(BlockingIOError):
                try:
                    rest = rest[os.write(self._input.fileno(), rest[: 1 << 16]):]
                except BrokenPipeError:  # it has ended, which its output tells
                    rest = rest[:0]
        more = os.read(self._output.fileno(), 1 << 16) if readable else b""
        self._read += more
        return rest, bool(readable) and not more

    def end(self) -> None:
        """End it and all of its group."""
        with suppress(ProcessLookupError, PermissionError):  # macOS says the second of a group that has ended
            if self._process.returncode is None:  # or else its number may be another's by now
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._input.close()
        self._output.close()
