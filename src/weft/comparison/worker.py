"""A process of its own for one piece of work: ``python -m weft.comparison.worker JOB.json``.

It tells how far it is in lines of JSON, and ends when whoever started it is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import torch

from weft.comparison.jobs import Job
from weft.comparison.work import do
from weft.core.registry import load_plugin

INTERRUPTED, STANDARD_INPUT = 130, 0


def main(path: str) -> int:
    """Do the piece of work that a file describes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    data = json.loads(Path(path).read_bytes())
    for plugin in data["plugins"]:
        load_plugin(Path(plugin))
    job = Job.from_json(data)
    torch.set_num_threads(job.threads)
    try:
        do(job, tell)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def tell(line: str, step: int, steps: int) -> None:
    """One line of JSON on standard output."""
    print(json.dumps({"line": line, "step": step, "steps": steps}), flush=True)


def _end_with_parent() -> None:
    """Standard input is a pipe from the parent; it ends when the parent does, however that comes about. What has been
    saved stands, and everything after it is done again by whoever goes on."""
    # Not through sys.stdin: its lock would still be held when the interpreter shuts down, which aborts it.
    while os.read(STANDARD_INPUT, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
