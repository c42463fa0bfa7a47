"""Writing what the agent knows of Pods to the API server."""
