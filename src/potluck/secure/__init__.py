"""Secure aggregation for models that overlap only in part: the server sees sums of blocks, and no single upload.

The settings are in `settings`, and need no other package. All else needs `cryptography`.
"""
