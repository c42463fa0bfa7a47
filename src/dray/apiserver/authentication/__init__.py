"""Authentication: certificates, tokens, impersonation. Only `pki` does file I/O.

Only `files` touches the disk; what a caller may do is decided elsewhere.
"""
