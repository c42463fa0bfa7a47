"""Checkpoints as files: how what the node must not forget gets onto the disk, whoever it belongs to."""
