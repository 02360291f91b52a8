"""Several processes that find what torchrun would have set up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from fresh import Ended, Fresh


def together(size: int, work: Callable[..., None], *arguments: object, folder: Path,
             seconds: float = 240) -> list[Ended]:
    """``work(*arguments)`` in each of ``size`` connected processes, which are killed after some ``seconds``; all must
    succeed."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port),
              "OMP_NUM_THREADS": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    ranks = [Fresh(work, *arguments, folder=folder, environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
             for rank in range(size)]
    ends = [rank.end(seconds) for rank in ranks]
    assert not any(end.returncode for end in ends), "\n".join(end.stderr for end in ends)
    return ends
