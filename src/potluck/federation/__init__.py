"""What a federation between machines needs: kits, the charter, the roster, nodes and their audit logs."""

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
