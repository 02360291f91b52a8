"""Blocks: how layers, norms and residual connections are wired. A block of layers is a Layer, and so is a stack."""
