"""Transports of bytes from an arena to a reader: one interface (`base`), one module per way."""
