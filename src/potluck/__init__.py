"""Federated learning where every device brings what it can."""
