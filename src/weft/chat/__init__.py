"""Conversations: messages, templates in a sandbox, and dialogues with a model whose state is kept."""
