"""Models in the formats of others: read, written and compared by their numbers."""
