"""The DNS server of a node: names of Services and their endpoints; other names are asked of the node's resolvers."""
