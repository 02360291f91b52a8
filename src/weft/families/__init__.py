"""Published families of models as data, and the folders in which Hugging Face's `transformers` keeps them."""
