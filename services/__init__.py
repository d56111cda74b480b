"""The four services. Each imports `earl`, never another service."""
