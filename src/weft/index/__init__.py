"""The index: what `weft list` shows of Weft's own parts, settings and presets, and of published models with their
parameters counted, stored as data so that it is there without PyTorch. ``python docs/generate.py`` writes it, and tests
compare it with the registry and with the models."""
