"""Who may do what: RBAC, the node rules, the default roles and access reviews.

Pure: documents in, decisions out; never a look at the store or at a connection.
"""
