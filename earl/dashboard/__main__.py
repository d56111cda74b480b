"""The dashboard of a run of the local stack: python -m earl.dashboard --run RUN.json [--name NAME]."""

from __future__ import annotations

from earl.service_main import service_main


def main() -> None:
    service_main("earl.dashboard.service", "dashboard", __doc__, "dashboard", "of this process, in logs")


if __name__ == "__main__":
    main()
