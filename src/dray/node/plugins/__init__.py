"""The plugin manager: finds the sockets of plugins in a folder and registers the plugins with their handlers."""
