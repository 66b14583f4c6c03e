"""The engine "remote": real nodes on other machines do the clients' work, over a transport."""

from potluck.engines.remote.engine import Remote, Terms
from potluck.engines.remote.inproc import InProcess
from potluck.engines.remote.transport import Answer, Parts, Presence, Respond, Transport

__all__ = ["Answer", "InProcess", "Parts", "Presence", "Remote", "Respond", "Terms", "Transport"]
