"""`python -m services.env_gateway --run FILE [--name NAME]`: the environment gateway of one run."""

from __future__ import annotations

from earl.service_main import service_main


def main() -> None:
    service_main("services.env_gateway.serve", "gateway", __doc__, "env_gateway")


if __name__ == "__main__":
    main()
