"""A server over HTTP, in the dialect of OpenAI's clients, of a model that an engine runs."""
