"""What several methods share: rounds to inherit from, and the pieces that these are made of. No method itself."""
