"""HTTP/1.1 for our own processes: a client with kept connections, and a small server; httptools parses.

`urls heads answers bodies requests router` decide and never touch a socket; `dialing proxy connection client server
health` do. Nothing here knows Kubernetes, and the API server has a server of its own.
"""
