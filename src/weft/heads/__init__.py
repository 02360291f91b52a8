"""Heads: from a model's hidden vectors to what a task asks for."""
