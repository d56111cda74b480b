"""SDK for environment authors."""
