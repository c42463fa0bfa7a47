"""Admission: a chain of plugins that change and check what is written, after authorization and before the store.

A plugin may await. `chain.py` lists the plugins in order; `plugin.py` says what a plugin is.
"""
