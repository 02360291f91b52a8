"""Feed-forwards: layers that work on each token's features."""
