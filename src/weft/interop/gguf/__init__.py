"""GGUF, the single file that llama.cpp opens: which families it can hold, and how they are written into it."""
