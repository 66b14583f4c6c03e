"""A user's own ``nn.Module`` in a federation: its axis groups are traced or declared, checked by numbers, and pruned.

A module without axis groups takes part whole."""

from potluck.models.trace.traced_module import TracedModule, trace
from potluck.models.trace.user_family import REGISTERED, check, register

__all__ = ["REGISTERED", "TracedModule", "check", "register", "trace"]
