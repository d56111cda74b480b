"""The environments with real tools and the aircraft, for one host to serve."""

from earl.env.adapters import pitch, python_tool, search_tool


def all_of_them():
    return [*python_tool.environments(), *search_tool.environments(), *pitch.environments()]
