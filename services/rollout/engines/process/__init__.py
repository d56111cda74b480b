"""Engines in processes of their own: the service's side, and their entry point."""
