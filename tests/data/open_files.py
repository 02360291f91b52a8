"""Many files of an array, in a process that may have few of them open."""

from __future__ import annotations

from pathlib import Path


def open_many(path: Path) -> None:
    """Open 200 arrays where 100 files are allowed and 400 on request, and then as many as it takes to be refused."""
    import resource

    import numpy as np

    from weft.core.errors import DataError
    from weft.data.stored_array import StoredArray

    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 400))
    held = [StoredArray(path, np.dtype("<u2"), 50) for _ in range(200)]
    assert all(each[:].tolist() == held[0][:].tolist() for each in held)
    try:
        held += [StoredArray(path, np.dtype("<u2"), 50) for _ in range(400)]
    except DataError as error:
        print(f"200 files; {path.name}: {str(error).partition(': ')[2].partition(' Copy')[0]}")
