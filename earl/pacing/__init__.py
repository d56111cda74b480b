"""Paced devices: how long a step takes on devices that are simulated. Pure."""
