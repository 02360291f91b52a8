"""For all tests."""

from __future__ import annotations

import os
import signal

import torch

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that: every test that sends
# Ctrl-C to a process of its own would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where there is no GPU, Triton runs its kernels by its interpreter, so that the forms in Triton are held to their
# references too. The variable is read when Weft's operations and Triton are imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
