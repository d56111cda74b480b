"""The process that agent-written Python runs in: confines itself, says how, then runs the code.

    python -S -s -P sandbox_child.py KEY=VALUE ...      code on stdin, what confines it on descriptor STATUS

sandbox.py starts it and tells what it protects from. It imports nothing but the standard library's
smallest parts, because every tool call waits for it. Each layer either holds or raises; which layers a
run has is decided here, since only trying tells what this machine permits.

    private root   mount, network, IPC and host name namespaces of its own (and a user namespace where it
                   is not root); / is a small read-only tree of Python and shared libraries, WORK a tmpfs
    privileges     another user where it was root, no capabilities, none to be had later
    limits         rlimits; killed with its parent
    Landlock       files: read Python and libraries, write WORK; no TCP, no signals or abstract sockets
                   to outside
    seccomp        only the system calls of sandbox_filter.py
"""

import ctypes
import io
import os
import resource
import signal
import stat
import sys
from _ast import Expr, Interactive, Module, PyCF_ONLY_AST

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long

NEW_NAMESPACES = 0x00020000 | 0x40000000 | 0x08000000 | 0x04000000  # NEWNS, NEWNET, NEWIPC, NEWUTS
NEW_USER = 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
DETACH = 2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
# The same numbers on every architecture that sandbox_filter.py knows.
MOUNT_SETATTR, LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 442, 444, 445, 446
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION = 0x20080522

WORK = "/sandbox"
# The new root is put together on top of this folder, of which nothing is needed any more by then.
STAGE = "/proc"
# User ids that nobody has: one for each process, so that limits on users are limits on sandboxes.
FIRST_UID, NOBODY = 1 << 30, 65534


def checked(done, what):
    """Raises OSError if a C function or system call said -1."""
    if done < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return done


def mount(source, target, kind, flags, data):
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    checked(
        LIBC.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), f"mount {target}"
    )


def prctl(option, value):
    arguments = [ctypes.c_ulong(number) for number in (value, 0, 0, 0)]
    checked(LIBC.prctl(ctypes.c_int(option), *arguments), f"prctl {option}")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


# --- private root -----------------------------------------------------------------------------------


def private_root(settings):
    """New namespaces, and a root of which only what Python needs is seen. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    try:
        checked(LIBC.unshare(NEW_NAMESPACES), "unshare")
    except PermissionError:
        checked(LIBC.unshare(NEW_NAMESPACES | NEW_USER), "unshare")
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{user} {user} 1")
        write("/proc/self/gid_map", f"{group} {group} 1")
    mount(None, "/", None, MS_REC | MS_PRIVATE, None)
    mount("tmpfs", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m,nr_inodes=2048")
    for path in settings["readable"]:
        show(path)
    for folder in (WORK, "/dev"):
        os.makedirs(STAGE + folder, exist_ok=True)
    if not os.path.lexists(STAGE + "/tmp"):
        os.symlink(WORK, STAGE + "/tmp")
    write(STAGE + "/dev/null", "")
    read_only(STAGE)
    mount("/dev/null", STAGE + "/dev/null", None, MS_BIND, None)
    options = f"mode=777,size={settings['disk_bytes']},nr_inodes={settings['files']}"
    mount("tmpfs", STAGE + WORK, "tmpfs", MS_NOSUID | MS_NODEV, options)
    os.chdir(STAGE)
    # Puts the old root on top of the new one and takes it away: pivot_root(2), "pivot_root(".", ".")".
    checked(LIBC.syscall(PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    checked(LIBC.umount2(b".", DETACH), "umount2")
    os.chdir(WORK)


def show(path):
    """Puts the file, folder or link `path` of the old root into the new one."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    target = STAGE + path
    if os.path.lexists(target):  # within a folder that is shown already
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(path), target)
        return
    if stat.S_ISDIR(mode):
        os.mkdir(target)
    else:
        write(target, "")
    mount(path, target, None, MS_BIND | MS_REC, None)


def read_only(path):
    """Makes all mounts from `path` on read-only, without devices or set-user-id."""

    class Attributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]

    attributes = Attributes(MS_RDONLY | MS_NOSUID | MS_NODEV, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    done = LIBC.syscall(
        MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), AT_RECURSIVE, ctypes.byref(attributes), size
    )
    checked(done, "mount_setattr")


# --- privileges and limits --------------------------------------------------------------------------


def become_nobody():
    """Gives up root's identity, where the private root needs it no more."""
    if os.geteuid() != 0:
        return
    for uid in (FIRST_UID + os.getpid(), NOBODY):
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            return
        except OSError:
            pass  # a user namespace that has no such user


def without_privileges():
    """Drops all capabilities, for this process and everything that it executes later."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    checked(LIBC.syscall(CAPSET[os.uname().machine], header, none), "capset")
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def limit(settings, has_private_user):
    """rlimits, and killed when the thread that waits for it ends. After the last change of user.

    has_private_user: whether all of the user's processes are this sandbox's, so that their number can be
    limited.
    """
    cpu = settings["cpu_s"]
    limits = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_AS: settings["memory_bytes"],
        resource.RLIMIT_FSIZE: settings["disk_bytes"],
        resource.RLIMIT_NOFILE: settings["open_files"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    if has_private_user:
        limits[resource.RLIMIT_NPROC] = settings["threads"]
    for name, value in limits.items():
        soft, hard = value if isinstance(value, tuple) else (value, value)
        most = resource.getrlimit(name)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(name, (soft, hard))
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != settings["parent"]:
        os._exit(1)


# --- Landlock ---------------------------------------------------------------------------------------

# LANDLOCK_ACCESS_FS_READ_FILE, _READ_DIR; those that a file can have: EXECUTE, WRITE, READ, TRUNCATE, IOCTL.
READ, OF_FILES = 4 | 8, 1 | 2 | 4 | 1 << 14 | 1 << 15
# What each version of Landlock added: file rights, then how long its ruleset is.
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
SIZES = {1: 8, 4: 16, 6: 24}


def landlock(readable, writable):
    """Reads below `readable`, everything below `writable`, nothing else. Returns the version, 0 for none."""
    version = LIBC.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return 0
    rights = (1 << max(bits for since, bits in FILE_RIGHTS.items() if since <= version)) - 1
    size = max(size for since, size in SIZES.items() if since <= version)
    # All rights on files; TCP bind and connect on the network; signals and abstract sockets kept inside.
    ruleset = (ctypes.c_uint64 * 3)(rights, 3, 3)
    rules = checked(LIBC.syscall(LANDLOCK_CREATE, ruleset, ctypes.c_size_t(size), 0), "landlock ruleset")

    class Beneath(ctypes.Structure):
        _pack_ = 1
        _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]

    for path, allowed in [(path, READ) for path in readable] + [(path, rights) for path in writable]:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            allowed &= OF_FILES
        rule = Beneath(allowed, place)
        checked(LIBC.syscall(LANDLOCK_ADD, rules, 1, ctypes.byref(rule), 0), f"landlock {path}")
        os.close(place)
    checked(LIBC.syscall(LANDLOCK_RESTRICT, rules, 0), "landlock_restrict_self")
    os.close(rules)
    return version


def seccomp(program):
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    installed = Program(len(program) // 8, program)
    checked(LIBC.prctl(PR_SET_SECCOMP, 2, ctypes.byref(installed), 0, 0), "seccomp")


# --- running ----------------------------------------------------------------------------------------


def confine(settings):
    """Applies every layer that this machine has; returns their names. Raises OSError if one that must hold
    does not."""
    # The last to have a processor and, where that can be said, the first to go when memory is short.
    os.nice(10)
    if os.access("/proc/self/oom_score_adj", os.W_OK):
        write("/proc/self/oom_score_adj", "1000")
    layers = []
    try:
        private_root(settings)
        layers.append("private root")
    except OSError as error:
        layers.append(f"no private root ({error.strerror})")
        os.chdir("/")
    private = layers == ["private root"]
    if private:
        become_nobody()
    without_privileges()
    limit(settings, private)
    version = landlock(["/"], [WORK, "/dev/null"]) if private else landlock(settings["readable"], [])
    if version:
        layers.append(f"landlock {version}")
    elif not private:
        raise OSError("neither namespaces nor Landlock: nothing would keep it from this machine's files")
    seccomp(settings["filter"] if private else settings["filter_read_only"])
    layers.append("seccomp")
    return layers


def parsed(arguments):
    """KEY=VALUE: numbers, hexadecimal programs, and `readable`, which repeats."""
    options: dict = {"readable": [], "package": []}
    for key, _, value in (argument.partition("=") for argument in arguments):
        if key in options:
            options[key].append(value)
        elif key.startswith("filter"):
            options[key] = bytes.fromhex(value)
        else:
            options[key] = int(value)
    return options


def run(code):
    """Runs `code` as __main__; a last line that is an expression is shown as an interactive Python would."""
    import builtins
    import types

    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    builtins.exit = builtins.quit = sys.exit
    try:
        tree = compile(code, "<code>", "exec", PyCF_ONLY_AST)
        assert isinstance(tree, Module)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], Expr) else None
        exec(compile(tree, "<code>", "exec"), main.__dict__)
        if last is not None:
            exec(compile(Interactive([last]), "<code>", "single"), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 the code's own, shown to who wrote it
        after = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(after), after)
        sys.exit(1)


def main():
    settings = parsed(sys.argv[1:])
    code = sys.stdin.buffer.read()
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.argv = [""]
    sys.path += settings["package"]
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)
    status = settings["status"]
    try:
        if settings["unprotected"]:
            os.chdir(os.environ["HOME"])
            limit(settings, False)
            layers = ["unprotected"]
        else:
            layers = confine(settings)
    except OSError as error:
        os.write(status, f"failed: {error}".encode())
        os._exit(1)
    os.write(status, f"ready: {', '.join(layers)}".encode())
    os.close(status)
    run(code)


if __name__ == "__main__":
    main()
