"""`python -m services.rollout --run FILE [--name NAME]`: one rollout worker."""

from __future__ import annotations

from earl.service_main import service_main

UNIQUE = "the worker's name, unique in the run"


def main() -> None:
    service_main("services.rollout.service", "rollout", __doc__, "rollout-0", UNIQUE)


if __name__ == "__main__":
    main()
