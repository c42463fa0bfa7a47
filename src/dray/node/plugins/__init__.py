"""How plugins make themselves known to the node: sockets in a folder, asked who they are, handed to their handler."""
