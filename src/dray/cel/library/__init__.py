"""The functions of the language and of its extensions, one module per library; each exports `REGISTRY`."""
