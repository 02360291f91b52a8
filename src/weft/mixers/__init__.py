"""Token mixers: causal layers that move information between tokens."""
