"""Base classes that several methods share, and their helpers. No methods."""
