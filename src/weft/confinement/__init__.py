"""Processes that run what a stranger has written: limits of the system, and how such a process is started."""
