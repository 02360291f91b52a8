"""Normalisations over the last dimension."""
