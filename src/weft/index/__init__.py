"""The index: what `weft list` shows of Weft's own parts, settings and presets, stored as data so that it is there
without PyTorch. ``python docs/generate.py`` writes it, and a test compares it with the registry."""
