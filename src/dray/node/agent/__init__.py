"""The agent: the Node object, the life of each Pod bound to it, its status, logs, probes and volumes."""
