"""Authorization: RBAC, the node authorizer, the default roles and access reviews.

Pure: documents in, decisions out.
"""
