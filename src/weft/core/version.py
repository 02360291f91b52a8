"""The version of the package, which files of every kind record."""

from __future__ import annotations

VERSION = "0.1.0"
