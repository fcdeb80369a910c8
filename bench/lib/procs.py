"""The programs of a run: servers, raw servers and the load program. All die with us, however we end."""
import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFLUX = os.environ.get("CONFLUX_BIN", str(ROOT / "build/conflux"))
LOAD = os.environ.get("CONFLUX_LOAD", str(pathlib.Path(CONFLUX).parent / "bench/load"))
OFF = "__DISABLE_SESSION__"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """What was measured did not work: the figure is left out, with this as the reason."""


def child(cpus=None, death=signal.SIGKILL):
    """For preexec_fn: pinned to these processors, and ended when we end."""

    def prepare():
        _libc.prctl(PR_SET_PDEATHSIG, death)
        if cpus:
            os.sched_setaffinity(0, cpus)

    return prepare


def load(scenario, cpus=None, **options):
    """One run of the load program; its report."""
    args = [LOAD, scenario]
    for key, value in {"warmup": 0.15, **options}.items():
        if value is not None:
            args += ["--" + key.replace("_", "-"), value if isinstance(value, str) else json.dumps(value)]
    out = subprocess.run(args, capture_output=True, text=True, preexec_fn=child(cpus))
    if out.returncode:
        raise Failed(f"{scenario}: {out.stderr.strip()[-300:] or f'ended with {out.returncode}'}")
    return json.loads(out.stdout)


def memory(pid, peak=False):
    """Resident bytes of a process."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search((r"VmHWM" if peak else r"VmRSS") + r":\s+(\d+)", text).group(1)) * 1024


def children(pid):
    """Processes below this one."""
    found, parents = [], {}
    for p in os.listdir("/proc"):
        try:
            if p.isdigit():
                stat = pathlib.Path(f"/proc/{p}/stat").read_text()
                parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(p))
        except OSError:
            pass
    todo = [pid]
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += below
    return found


def become_reaper():
    """Whatever our children leave behind becomes our child, so that end_all finds it."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_all():
    """Ends every process that this run has left; only descendants of ours are looked at."""
    while left := children(os.getpid()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)  # what it leaves is ours now, for the next round
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


class Http:
    """A plain client for what is not measured."""

    def __init__(self, port):
        self.port = port

    def call(self, method, path, body=None, timeout=60):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            payload = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
            c.request(method, path, payload, {} if body is None else {"Content-Type": "application/json"})
            r = c.getresponse()
            data = r.read()
        finally:
            c.close()
        if r.status >= 300:
            raise Failed(f"{method} {path}: {r.status} {data[:200].decode(errors='replace')}")
        return data

    def post(self, path, body):
        return json.loads(self.call("POST", path, body))

    def get(self, path):
        return json.loads(self.call("GET", path))


class Server(Http):
    """Conflux on a free port with folders of its own; start_ms is the time to its first answer."""

    def __init__(self, *options, cpus=None):
        self.dir = tempfile.TemporaryDirectory(prefix="conflux-bench-")
        self.work = self.dir.name + "/work"
        begin = time.monotonic()
        self.proc = subprocess.Popen(
            [CONFLUX, "serve", "--port", "0", "--state", self.dir.name + "/state", "--workspace", self.work, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=child(cpus, signal.SIGTERM),
            text=True,
        )
        super().__init__(int(re.search(r":(\d+)\s*$", self.proc.stdout.readline()).group(1)))
        self.call("GET", "/api/ping")
        self.start_ms = (time.monotonic() - begin) * 1000

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.send_signal(signal.SIGTERM)
        self.proc.wait()
        self.proc.stdout.close()
        self.dir.cleanup()

    def server_pid(self):
        """The keeper is what we started; the server is the child of it that has the name."""
        for pid in children(self.proc.pid):
            try:
                if "conflux-server" in os.readlink(f"/proc/{pid}/exe"):
                    return pid
            except OSError:
                pass
        raise Failed("the server process was not found")

    def rss(self):
        """Of keeper and server together."""
        return memory(self.proc.pid) + memory(self.server_pid())

    def cpu(self):
        """Processor time of keeper and server, in ns: of all their threads, and of none that another program had
        meanwhile."""
        stats = [
            p
            for pid in (self.proc.pid, self.server_pid())
            for p in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
        ]
        return sum(int(p.read_text().split()[0]) for p in stats)

    def session(self, name="bench"):
        self.post("/api/session/create", {"id": name})
        return name

    def text_file(self, size):
        return text_file(self.work, size)


def text_file(folder, size):
    """A file of so many bytes of 76-column text, made once; its path."""
    path, line = f"{folder}/{size}.txt", "A" * 76 + "\n"
    if not os.path.exists(path):
        with open(path, "w") as f:
            f.write((line * (size // len(line) + 1))[:size])
    return path


class Waiting:
    """A scenario of the load program that says something and then waits for its standard input to end."""

    def __init__(self, scenario, cpus=None, **options):
        args = [LOAD, scenario]
        for key, value in options.items():
            args += ["--" + key, value if isinstance(value, str) else json.dumps(value)]
        self.proc = subprocess.Popen(
            args,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=child(cpus),
        )
        self.said = self.proc.stdout.readline().strip()
        if not self.said:
            raise Failed(f"{scenario}: {self.proc.stderr.read().strip()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.stdin.close()
        self.proc.wait()
        self.proc.stdout.close()
        self.proc.stderr.close()


class Raw(Waiting):
    """echo-server or mux-server; port."""

    def __init__(self, scenario, cpus=None):
        super().__init__(scenario, cpus)
        self.port = int(self.said)
