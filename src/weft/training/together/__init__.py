"""Modules that only runs of several processes import: torch's distributed checkpoints take a second. It is a package of
its own because the modules of `weft.training` are all imported in the search for parts."""
