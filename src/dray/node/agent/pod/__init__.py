"""The lifecycle and status of one Pod, and the specs of its containers. Pure."""
