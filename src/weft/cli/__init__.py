"""The command line: every command renders one typed function of `weft.api`. Importing it does not import torch."""
