"""Certificate signing requests and bootstrap tokens, by which nodes join the cluster."""
