"""Analysis: the cost of a model before it runs, the catalogue of parts, and the capabilities of this machine."""
