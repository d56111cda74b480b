"""Builds and runs EARL's containers on a Debian machine without a Docker daemon, with podman, as root.

    python tools/containers.py setup    install Debian's packages and make the base image
    python tools/containers.py check    say what is missing; exit code 1 if anything is
    python tools/containers.py build    build the CPU image as localhost/earl:cpu
    python tools/containers.py podman … podman with the configuration that all of these use

The base image is made of Debian's packages (debootstrap), so no registry of images is needed. pip in a build
is configured as pip is here: indexes, certificates and directories of wheels are lent to the build and stay
out of the image.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlparse

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".tools" / "containers"
CONFIGURATION = STATE / "containers.conf"
BASE = "localhost/earl-base:bookworm"
IMAGE = "localhost/earl:cpu"
# Command -> Debian's package that has it.
COMMANDS = {
    "podman": "podman",
    "buildah": "buildah",
    "runc": "runc",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
}
PACKAGES = [*COMMANDS.values(), "netavark", "aardvark-dns", "catatonit"]
# What containers may have, and less where this process may not have it itself: they could not be started.
LIMITS = {"nofile": (resource.RLIMIT_NOFILE, 65_536), "nproc": (resource.RLIMIT_NPROC, 32_768)}
# Debian's release of it knows no profiles.
COMPOSE = "podman-compose==1.6.0"
COMPOSE_COMMAND = STATE / "compose" / "bin" / "podman-compose"
IN_BASE = "python3,python3-venv,tini,ca-certificates"
# The machine may have no systemd, whose cgroups podman would use by itself.
SETTINGS = """[containers]
default_ulimits = [{limits}]
log_driver = "k8s-file"

[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"

[network]
network_backend = "netavark"
"""


def environment() -> dict[str, str]:
    """The environment that podman and podman-compose are started with."""
    if not CONFIGURATION.is_file():
        STATE.mkdir(parents=True, exist_ok=True)
        limits = ", ".join(f'"{limit}"' for limit in ulimits())
        CONFIGURATION.write_text(SETTINGS.format(limits=limits))
    return {**os.environ, "CONTAINERS_CONF": str(CONFIGURATION), "BUILDAH_ISOLATION": "oci"}


def ulimits() -> list[str]:
    options = []
    for name, (kind, needed) in LIMITS.items():
        hard = resource.getrlimit(kind)[1]
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        options.append(f"{name}={most}:{most}")
    return options


def podman(*arguments: str, check: bool = True, **options) -> subprocess.CompletedProcess:
    return subprocess.run(["podman", *arguments], env=environment(), check=check, **options)


def missing_programs() -> list[str]:
    """Returns what `build` lacks on this machine, each with its remedy."""
    if os.geteuid() != 0:
        return ["this user is not root: containers with networks of their own need it here"]
    lacking = sorted({package for command, package in COMMANDS.items() if shutil.which(command) is None})
    if lacking:
        return [f"Debian's {', '.join(lacking)} not installed: run python tools/containers.py setup"]
    if not COMPOSE_COMMAND.exists():
        return [f"{COMPOSE} is not installed: run python tools/containers.py setup"]
    if podman("image", "exists", BASE, check=False).returncode != 0:
        return [f"there is no base image {BASE}: run python tools/containers.py setup"]
    return []


def setup() -> int:
    """Installs packages and makes the base image; what exists is left as it is."""
    if os.geteuid() != 0:
        print("containers: run it as root")
        return 2
    if any(shutil.which(command) is None for command in COMMANDS):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=True)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
        subprocess.run(install, env=quiet, check=True)
    if not COMPOSE_COMMAND.exists():
        venv.create(STATE / "compose", with_pip=True)
        pip = [str(COMPOSE_COMMAND.with_name("python")), "-m", "pip", "install", "--quiet", COMPOSE]
        subprocess.run(pip, check=True)
    if podman("image", "exists", BASE, check=False).returncode == 0:
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        make = ["debootstrap", "--variant=minbase", f"--include={IN_BASE}", "bookworm", str(root)]
        subprocess.run(make, check=True)
        shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
        shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
        archive = Path(scratch) / "root.tar"
        subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
        podman("import", "--quiet", str(archive), BASE)
    return 0


def lent() -> list[str]:
    """`podman build` options that let pip in a build install as pip here does."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    settings: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = value.strip().strip("'\"").replace("\\n", " ")
    STATE.mkdir(parents=True, exist_ok=True)
    pip_conf = STATE / "pip.conf"
    pip_conf.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    paths = {pip_conf: "/etc/pip.conf"}
    for word in " ".join(settings.values()).split():
        url = urlparse(word)
        path = Path(unquote(url.path)) if url.scheme == "file" else Path(word)
        if path.is_absolute() and path.exists():
            # The directory above an index's pages has its files.
            kept = path.parent if path.name == "simple" else path
            paths[kept] = str(kept)
    return [option for path, there in paths.items() for option in ("--volume", f"{path}:{there}:ro")]


def build() -> int:
    if wrong := missing_programs():
        print("\n".join(f"containers: {problem}" for problem in wrong))
        return 1
    done = podman(
        "build", "--format", "docker", "--layers", "--network", "host", *lent(),
        *(option for limit in ulimits() for option in ("--ulimit", limit)),
        "--build-arg", f"BASE={BASE}", "--file", str(ROOT / "deploy/docker/Dockerfile"),
        "--tag", IMAGE, str(ROOT), check=False,
    )  # fmt: skip
    return done.returncode


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["setup"]:
            return setup()
        case ["check"]:
            wrong = missing_programs()
            print(
                "\n".join(f"containers: {problem}" for problem in wrong) or "containers: nothing is missing"
            )
            return 1 if wrong else 0
        case ["build"]:
            return build()
        case ["podman", *rest]:
            return podman(*rest, check=False).returncode
    print(__doc__)
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
