"""Adapters saved apart from the model that they adapt: Weft's own folders, and those of `peft`."""
