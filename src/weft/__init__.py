"""Weft: one frame in which every language-model architecture is declared, trained, compared, decoded and exchanged."""

__version__ = "0.1.0"
