"""The teacher: another frozen policy, served as the reference stage serves its own."""
