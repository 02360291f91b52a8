"""For all tests."""

from __future__ import annotations

import signal

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that: every test that sends
# Ctrl-C to a process of its own would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
