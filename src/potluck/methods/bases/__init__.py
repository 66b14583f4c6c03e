"""Classes that several methods inherit from, and what these are made of. No method itself."""
