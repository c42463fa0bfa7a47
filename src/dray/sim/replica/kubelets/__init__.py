"""The nodes of a replica: whatever is placed on them runs."""
