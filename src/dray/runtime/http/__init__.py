"""HTTP/1.1: a client with persistent connections, and the server of all processes; httptools parses.

`urls`, `heads`, `responses`, `bodies`, `requests` and `router` are pure; `dialing`, `proxy`, `connection`, `client` and
`server` do I/O. Independent of Kubernetes.
"""
