"""Checks a DRA driver or device plugin, in any language, against kubelet's protocol: requirements, checks, report."""
