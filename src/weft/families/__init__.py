"""Published families of models, as data: their architecture, configuration keys, weights, sizes and sources."""
