"""Heads: maps from a model's hidden vectors to what a task needs."""
