"""Who is asking: certificates, tokens, impersonation.

Only `files` touches the disk; what a caller may do is decided elsewhere.
"""
