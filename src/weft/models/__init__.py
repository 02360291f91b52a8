"""Language models and encoders: they depend on states and spans, and not on optimizers, tokenizers or files."""
