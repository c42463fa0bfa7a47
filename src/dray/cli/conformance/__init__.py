"""Holds a DRA driver or device plugin, in any language, to kubelet's protocol: requirements, checks and the report."""
