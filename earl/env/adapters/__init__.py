"""Environments that others wrote, made EARL's: one module per package, imported only when served."""
