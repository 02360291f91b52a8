"""What `test_onednn_caches` runs in a process of its own."""

from __future__ import annotations

import ctypes

import torch

import weft.ops

FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class Heap(ctypes.Structure):
    """GNU's ``struct mallinfo2``."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def used() -> int:
    """Bytes that the process has allocated in C."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Heap
    heap = library.mallinfo2()
    return int(heap.uordblks + heap.hblkhd)


def products_of_many_lengths() -> None:
    """Print by how many bytes 600 products of different lengths let the process grow, behind 200 others."""
    assert weft.ops
    torch.set_num_threads(1)
    weight = torch.ones(64, 64).to_mkldnn()
    found = []
    for lengths in (range(100, 300), range(300, 900)):
        for length in lengths:
            torch._C._nn.mkldnn_linear(torch.ones(length, 64).to_mkldnn(), weight)  # type: ignore[attr-defined]
        found.append(used())
    print(found[1] - found[0])
