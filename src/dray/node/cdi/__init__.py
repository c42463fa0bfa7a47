"""CDI on the node: reading spec directories, resolving device names, editing OCI configurations."""
