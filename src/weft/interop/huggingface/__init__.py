"""Folders of Hugging Face's `transformers`: opened, loaded, written, and those that bring their own code."""
