"""A user's own ``nn.Module`` in a federation: its axis groups are traced, checked by numbers, and pruned to a width."""
