"""The image store of the runc runtime: root file systems on disk, imported from folders and archives."""
