"""The sandbox: what agent-written Python may do, every way out that was thought of, and what ends it.

An escape is code that raises unless it works. All are tried where everything that confines is permitted, as
another user than root, and in a process that may make no namespaces (as in a container).
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from earl.env.sandbox import MAX_CODE_BYTES, RunEnd, Sandbox, SandboxLimits
from earl.errors import SandboxUnavailable

SANDBOX = Sandbox(SandboxLimits(wall_s=10.0))


def ran(code: str, **limits) -> tuple[str, RunEnd]:
    run = Sandbox(SandboxLimits(**limits)).run(code) if limits else SANDBOX.run(code)
    return run.output, run.end


def elsewhere(how: str, codes: list[str], **environment: str) -> list[dict]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.confined", how],
        input=json.dumps(codes),
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# --- what it is for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("print(6 * 7)", "42\n"),
        ("x = [3, 1, 2]\nsorted(x)", "[1, 2, 3]\n"),
        ("None", ""),
        ("import statistics, sqlite3, hashlib, zoneinfo\nstatistics.median([4, 1, 3])", "3\n"),
        ("with open('a', 'w') as f: f.write('kept')\nopen('/tmp/a').read()", "'kept'\n"),
        ("import tempfile\ntempfile.gettempdir()", "'/sandbox'\n"),
        ("async def f():\n    return 5\nimport asyncio\nasyncio.run(f())", "5\n"),
        ("import threading\nt = threading.Thread(target=print, args=(7,))\nt.start(); t.join()", "7\n"),
        ("import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')", "a\nb\nc\n"),
    ],
)
def test_it_runs_python(code, output):
    assert ran(code) == (output, RunEnd.OK)


def test_the_same_code_has_the_same_output():
    hashed = "print({str(n) for n in range(50)}, hash('x'))"
    assert ran(hashed) == ran(hashed)
    assert ran("input()")[0].endswith("EOFError: EOF when reading a line\n")


def test_what_goes_wrong_is_shown():
    said, end = ran("def f():\n    return 1 / 0\nprint('so far')\nf()")
    assert end is RunEnd.FAILED
    assert said.startswith("so far\n") and said.endswith("ZeroDivisionError: division by zero\n")
    assert 'File "<code>", line 4' in said and "sandbox_child" not in said
    assert "SyntaxError" in ran("def f(:")[0]
    assert ran("import sys\nsys.exit(3)") == ("", RunEnd.FAILED)
    assert ran("exit()") == ("", RunEnd.OK)
    assert SANDBOX.run("").shown() == "(no output)"
    assert ran("#" + "x" * MAX_CODE_BYTES)[1] is RunEnd.FAILED
    assert ran("print('\ud800')") == ("?\n", RunEnd.OK)


def test_the_operators_packages_can_be_imported_and_not_changed(tmp_path):
    (tmp_path / "offered.py").write_text("VALUE = 5\n")
    tmp_path.chmod(0o755)
    code = "import offered\nprint(offered.VALUE)\nopen(offered.__file__, 'a').write('VALUE = 6')"
    (tmp_path / "inner").mkdir()
    run = Sandbox(packages=[tmp_path / "inner", tmp_path]).run(code)
    assert run.output.startswith("5\n") and run.end is RunEnd.FAILED
    assert (tmp_path / "offered.py").read_text() == "VALUE = 5\n"
    assert "No module named" in SANDBOX.run(code).output


# --- bounds ---------------------------------------------------------------------------------------


def test_time_is_bounded():
    # The first line is printed long before, on a busy machine too.
    assert ran("import time\nprint('on')\ntime.sleep(9)", wall_s=2.0) == ("on\n", RunEnd.TIMEOUT)
    ignoring = """
import signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGXCPU):
    signal.signal(number, signal.SIG_IGN)
while True:
    try:
        time.sleep(9)
    except BaseException:
        pass
"""
    assert ran(ignoring, wall_s=0.4)[1] is RunEnd.TIMEOUT
    assert ran("import os, time\nos.close(1); os.close(2)\ntime.sleep(9)", wall_s=0.4)[1] is RunEnd.TIMEOUT
    assert ran("import os\nos.close(1); os.close(2)")[1] is not RunEnd.TIMEOUT
    assert ran("while True: pass", cpu_s=1, wall_s=60.0)[1] is RunEnd.CPU


def test_memory_and_disk_and_threads_are_bounded():
    assert "MemoryError" in ran("x = bytearray(10 ** 9)")[0]
    growing = "x = []\nwhile True: x.append(bytearray(10 ** 6))"
    assert "MemoryError" in ran(growing, memory_bytes=100 << 20)[0]
    filling = """
import os
written = 0
try:
    for number in range(10 ** 6):
        with open(str(number % 40), 'ab') as file:
            written += file.write(b'x' * 10 ** 6)
except OSError as error:
    print(error.errno, written <= 16 << 20)
"""
    assert ran(filling)[0] in ("28 True\n", "27 True\n")
    names = (
        "try:\n    for n in range(10 ** 6): open(str(n), 'w').close()\nexcept OSError as e: print(e.errno, n)"
    )
    code, made = ran(names)[0].split()
    assert code == "28" and int(made) < 256
    opened = (
        "import os\nf = []\ntry:\n    while True: f += os.pipe()\nexcept OSError as e: print(e.errno, len(f))"
    )
    assert ran(opened)[0].split()[0] == "24"
    threads = """
import threading, time
threading.stack_size(65536)
try:
    for number in range(1000):
        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
except RuntimeError:
    print(number)
"""
    assert int(ran(threads)[0]) < 32


def test_output_is_truncated_in_its_middle_and_a_flood_ends_the_run():
    said, end = ran("print('<' + 'x' * 10 ** 5 + '>')", output_bytes=1000)
    assert end is RunEnd.OK and said.startswith("<xx") and said.endswith("xx>\n")
    assert "[99003 bytes left out]" in said and len(said) < 1100
    said, end = ran("while True: print('y' * 10 ** 6)", output_bytes=1000)
    assert end is RunEnd.OUTPUT and len(said) < 1100
    assert SANDBOX.run("import os\nos.write(1, bytes(range(256)))").output


# --- ways out -------------------------------------------------------------------------------------

ESCAPES = {
    # first: others leave pipes open
    "descriptors": """
for number in range(3, 64):
    try: os.fstat(number)
    except OSError: continue
    break
else: 1 / 0
""",
    "tcp": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)",
    "udp": "import socket\nsocket.socket(2, 2).sendto(b'x', ('127.0.0.1', {udp}))",
    "unix": "import socket\nsocket.socket(1, 1).connect({unix!r})",
    "abstract": "import socket\nsocket.socket(1, 1).connect('\\0' + {abstract!r})",
    "datagram by a pair": "import socket\na, b = socket.socketpair(1, 2)\na.sendto(b'x', {unix!r})",
    "stream pair to an address": "import socket\na, b = socket.socketpair()\na.sendto(b'x', {unix!r})",
    "netlink": "import socket\nsocket.socket(16, 3, 0)",
    "http": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}')",
    "secret": "open({secret!r}).read()",
    "secret by a link": "import os\nos.symlink({secret!r}, 'link')\nopen('link').read()",
    "secret by a hard link": "import os\nos.link({secret!r}, 'link')\nopen('link').read()",
    "secret by dots": "open('/tmp/../' * 9 + {secret!r}).read()",
    "users": "open('/etc/passwd').read()",
    "listing": "import os\nassert 'secret' in ' '.join(os.listdir({folder!r}))",
    "writing outside": "open({folder!r} + '/new', 'w')",
    "writing libraries": "import os\nopen(os.__file__, 'a')",
    "truncating": "import os\nos.truncate({secret!r}, 0)",
    "opening to truncate": "import os\nos.open({secret!r}, os.O_RDONLY | os.O_TRUNC)",
    "changing modes": "import os\nos.chmod({secret!r}, 0o644)",
    "changing times": "import os\nos.utime({secret!r}, (0, 0))",
    "removing": "import os\nos.remove({secret!r})",
    "fork": "import os\nif os.fork(): os.wait()",
    "program": "import subprocess\nsubprocess.run(['/bin/true'])",
    "exec": "import os\nos.execv('/bin/true', ['true'])",
    "daemon": "import os\nif os.fork() == 0:\n    os.setsid()\n    while os.fork() == 0: pass",
    "kill": "import os\nos.kill(os.getppid(), 0)",
    "kill all": "import os\nos.kill(-1, 0)",
    "kill by owner": "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())",
    "trace": "assert libc.ptrace(16, os.getppid(), 0, 0) == 0",
    "read memory": "assert libc.process_vm_readv(os.getppid(), None, 0, None, 0, 0) == 0",
    "proc of the parent": "open(f'/proc/{{os.getppid()}}/environ').read()",
    "proc of itself": "open('/proc/self/environ').read()",
    "parent's folder": "os.readlink(f'/proc/{{os.getppid()}}/cwd')",
    "environment": "assert 'EARL_TEST_SECRET' in os.environ",
    "devices": "os.mknod('/tmp/disk', 0o60600, os.makedev(254, 0))",
    "mount": "assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "namespace": "assert libc.unshare(0x10000000) == 0",
    "other root": "os.chroot('/tmp')",
    "user": "os.setuid(0)\nassert os.getuid() == 0",
    "limits": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
    "io_uring": "assert libc.syscall(425, 4, bytes(120)) >= 0",
    "memory file": "os.memfd_create('x')",
    "keys": "assert libc.syscall({keys}, b'user', b'a', b'b', 1, -2) >= 0",
    "bpf": "assert libc.syscall({bpf}, 0, bytes(64), 64) >= 0",
    "filter off": "assert libc.prctl(22, 0, 0, 0, 0) == 0",
    "shared segment": "assert libc.shmget(0, 4096, 0o1600) >= 0",
}
HEAD = "import ctypes, os\nlibc = ctypes.CDLL(None)\n"


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Something to find: a secret file, sockets that listen, a secret variable. Yields the codes."""
    secret = tmp_path / "secret"
    secret.write_text("found")
    secret.chmod(0o644)
    monkeypatch.setenv("EARL_TEST_SECRET", "found")
    abstract = f"earl-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix,
        socket.socket(socket.AF_UNIX) as unnamed,
    ):
        udp.bind(("127.0.0.1", 0))
        unix.bind(str(tmp_path / "socket"))
        unnamed.bind(f"\0{abstract}")
        unnamed.listen()
        places = {
            "port": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "unix": str(tmp_path / "socket"),
            "abstract": abstract,
            "secret": str(secret),
            "folder": str(tmp_path),
            **({"keys": 248, "bpf": 321} if os.uname().machine == "x86_64" else {"keys": 217, "bpf": 280}),
        }
        yield {name: HEAD + code.format(**places) for name, code in ESCAPES.items()}
        udp.setblocking(False)
        unix.setblocking(False)
        for quiet in (udp, unix):
            with pytest.raises(BlockingIOError):
                quiet.recv(10)
    assert secret.read_text() == "found" and secret.stat().st_mode & 0o777 == 0o644
    assert secret.stat().st_mtime > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "socket"]


def tried(codes: dict[str, str]) -> str:
    """Code that tries all of them and prints the names of those that worked, and a last line."""
    return f"""
for name, code in {codes!r}.items():
    try:
        exec(code, {{}})
    except BaseException:
        continue
    print("ESCAPED:", name)
print("all tried")
"""


def test_the_ways_out_work_where_nothing_confines(outside):
    """Else those below could not fail."""
    names = ("tcp", "abstract", "secret", "secret by a link", "users", "listing", "fork", "program", "kill")
    names += ("proc of the parent", "kill by owner", "memory file", "shared segment", "changing modes")
    free = Sandbox(SandboxLimits(wall_s=10.0), unprotected=True)
    said = free.run(tried({name: outside[name] for name in names})).output.splitlines()
    assert {line for line in said if "ESCAPED" in line} == {f"ESCAPED: {name}" for name in names}


def test_a_fork_bomb_does_not_go_off():
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except BlockingIOError: pass"
    assert ran(bomb)[0].endswith("PermissionError: [Errno 1] Operation not permitted\n")


def test_no_way_out(outside):
    run = SANDBOX.run(tried(outside))
    assert run.output == "all tried\n" and run.layers.endswith("seccomp")


@pytest.mark.parametrize("how", ["container", "user"])
def test_no_way_out_of_less(how, outside):
    works, escapes = elsewhere(how, ["print(6 * 7)", tried(outside)])
    assert works["output"] == "42\n" and escapes["output"] == "all tried\n"
    assert ("no private root" in works["layers"]) == (how == "container")


def test_without_anything_that_confines_nothing_is_run():
    (refused,) = elsewhere("bare", ["open('/etc/passwd')"])
    assert "EARL_SANDBOX=unprotected" in refused["refused"]
    (run,) = elsewhere("bare", ["6 * 7"], EARL_SANDBOX="unprotected")
    assert (run["output"], run["layers"]) == ("42\n", "unprotected")


def test_runs_do_not_meet():
    seen = "import os\nprint(os.listdir('.'))\nopen('mine', 'w').close()"
    assert [ran(seen)[0] for _ in range(2)] == ["[]\n", "[]\n"]
    outputs: list[str] = []
    count = "import threading\nprint(threading.active_count())"
    threads = [threading.Thread(target=lambda: outputs.append(ran(count)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == ["1\n"] * 4


def test_a_run_ends_with_its_host(tmp_path):
    host = subprocess.Popen(
        [sys.executable, "-c", "from earl.env.sandbox import *\nSandbox().run('while True: pass')"],
        start_new_session=True,
    )
    try:
        children = Path(f"/proc/{host.pid}/task/{host.pid}/children")
        while not (child := children.read_text().split()) and host.poll() is None:
            pass
        descriptor = os.pidfd_open(int(child[0]))
    finally:
        os.killpg(host.pid, signal.SIGKILL)
        host.wait()
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(10_000), "the run outlived its host"
    os.close(descriptor)


def test_limits_of_the_machine_are_said(monkeypatch):
    monkeypatch.setattr("earl.env.sandbox.platform.machine", lambda: "m68k")
    from earl.env import sandbox

    sandbox._filters.cache_clear()
    try:
        with pytest.raises(SandboxUnavailable, match="m68k"):
            Sandbox().run("")
    finally:
        sandbox._filters.cache_clear()
