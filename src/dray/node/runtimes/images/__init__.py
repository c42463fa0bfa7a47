"""The node's own images: root file systems on disk, imported from folders and archives."""
