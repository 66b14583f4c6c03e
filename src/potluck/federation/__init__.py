"""What a federation between machines needs: a private authority, a kit for each side, the admitted nodes."""

from potluck.federation.admission import AdmittedNodes, NodeEntry, read_nodes
from potluck.federation.kits import Kit, read_kit
from potluck.federation.provisioning import (
    FederationSettings,
    make_site_key,
    provision,
    read_federation,
    read_site_key,
    renew,
)

__all__ = [
    "AdmittedNodes", "FederationSettings", "Kit", "NodeEntry", "make_site_key", "provision", "read_federation",
    "read_kit", "read_nodes", "read_site_key", "renew",
]  # fmt: skip
