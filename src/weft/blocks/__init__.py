"""Blocks: the wiring of layers, norms and residual connections. A block is itself a layer, and so is a stack."""
