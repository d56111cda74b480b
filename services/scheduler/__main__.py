"""`python -m services.scheduler --run FILE [--name NAME]`: the scheduler of one run."""

from __future__ import annotations

from earl.service_main import service_main


def main() -> None:
    service_main("services.scheduler.service", "scheduler", __doc__, "scheduler")


if __name__ == "__main__":
    main()
