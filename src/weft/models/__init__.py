"""Language models and encoders: they know states and spans, and nothing of optimizers, tokenizers or files."""
