"""Making ready what a Pod's containers need on this node: volumes, tokens, environment."""
