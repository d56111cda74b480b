"""What the images are given before EARL itself is what EARL with the same extras asks for."""

from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from tools.install import requirements


@pytest.mark.parametrize("extras", [["stack", "otel", "open-spiel"], ["envs"], ["nixl", "tensorboard"]])
def test_what_extras_stand_on_is_what_the_package_says(extras: list[str]):
    def asked(extra: str) -> set[Requirement]:
        found = set()
        for one in map(Requirement, requires("earl") or []):
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                found |= set().union(*map(asked, one.extras)) if one.name == "earl" else {one}
        return found

    expected = {(one.name, str(one.specifier), *one.extras) for extra in extras for one in asked(extra)}
    given = {(one.name, str(one.specifier), *one.extras) for one in map(Requirement, requirements(extras))}
    assert given == expected
