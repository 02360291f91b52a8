"""The index: what `weft list` shows of Weft's own parts, settings and presets, and of published models, kept as data so
that it is there without PyTorch."""
