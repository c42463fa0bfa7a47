"""Real containers by runc, with this node's own images and one minimal OCI configuration each."""
