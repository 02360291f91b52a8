"""Conversations: messages, templates in a sandbox, and answers of a model whose state is kept from turn to turn."""
