"""The drivers of the node: their instances, which one to use, and the connection to each."""
