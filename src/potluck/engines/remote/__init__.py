"""The engine "remote": real nodes on other machines do the clients' work, over a transport."""

from potluck.engines.remote.transport import Answer, Parts, Presence, Respond, Transport

__all__ = ["Answer", "Parts", "Presence", "Respond", "Transport"]
