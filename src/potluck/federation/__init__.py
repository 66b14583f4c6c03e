"""What a real federation needs: kits, charter, roster, nodes and their audit logs."""
