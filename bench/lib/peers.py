"""Other control planes, from npm, beside ours in the same run: the same operations where they have them.

All of it happens in a network namespace of its own: the container server of @cloudflare/sandbox listens on port 3000
of every address and has no option for that, and nothing here may be reachable from outside. Ours is measured there too.
"""
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

from .procs import OFF, ROOT, Failed, Http, Server, child, children, load, memory, text_file

FOLDER = ROOT / "bench/peers"
MODULES = FOLDER / "node_modules"
CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP = 0x40000000, 0x8914, 1
_libc = ctypes.CDLL(None, use_errno=True)


def install():
    """As the lock file says; nothing when it is there."""
    stamp = MODULES / ".package-lock.json"
    if stamp.exists() and stamp.stat().st_mtime >= (FOLDER / "package-lock.json").stat().st_mtime:
        return
    if not shutil.which("npm"):
        raise Failed("npm is not installed")
    out = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        preexec_fn=child(),
    )
    if out.returncode:
        raise Failed("npm ci: " + (out.stderr or out.stdout).strip()[-300:])


@contextlib.contextmanager
def own_network():
    """This thread, and what it starts, in a new network namespace whose only interface is its loopback."""
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.unshare(CLONE_NEWNET):
            raise Failed("a network namespace cannot be made: " + os.strerror(ctypes.get_errno()))
        with socket.socket() as s:
            fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
        yield
    finally:
        if _libc.setns(outside, CLONE_NEWNET):
            raise SystemExit("cannot leave the network namespace")
        os.close(outside)


class Peer(Http):
    """A program that serves on a port; ready when a path answers."""

    def __init__(self, argv, port, health, cwd, env):
        super().__init__(port)
        self.dir = tempfile.TemporaryDirectory(prefix="conflux-peer-")
        begin = time.monotonic()
        self.proc = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, "HOME": self.dir.name, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=child(),
        )
        while True:
            try:
                self.call("GET", health, timeout=5)
                break
            except (OSError, Failed) as e:
                if self.proc.poll() is not None or time.monotonic() - begin > 20:
                    self.stop()
                    raise Failed(f"{argv[0]} does not serve: {e}") from None
                time.sleep(0.002)  # the interval of a probe
        self.start_ms = (time.monotonic() - begin) * 1000

    def pids(self):
        return [self.proc.pid] + children(self.proc.pid)

    def rss(self, peak=False):
        return memory(self.proc.pid, peak)

    def stop(self):
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.proc.pid, signal.SIGKILL)  # what has lost its parent
        self.proc.wait()
        self.dir.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def execute_stream(port, body, patience):
    return load(
        "sse",
        port=port,
        method="POST",
        path="/api/execute/stream",
        body=body,
        event='"complete"',
        timeout=patience,
    )


class SandboxAgent(Peer):
    """@sandbox-agent/cli: programs by POST /v1/processes/run, files raw, output as server-sent events with base64."""

    NAME, LABEL = "sandbox-agent", "sandbox-agent 0.4.2"

    def __init__(self):
        program = MODULES / "@sandbox-agent/cli-linux-x64/bin/sandbox-agent"
        super().__init__(
            [str(program), "server", "--no-token", "--no-telemetry", "--port", "2468"], 2468, "/v1/health", "/", {}
        )

    def ask(self, op, size=0):
        path = text_file(self.dir.name, size)
        return {
            "ping": dict(path="/v1/health"),
            "exec": dict(method="POST", path="/v1/processes/run", body={"command": "bash", "args": ["-c", "echo hi"]}),
            "read": dict(path=f"/v1/fs/file?path={path}"),
            "write": dict(method="PUT", path=f"/v1/fs/file?path={path}.new", step_size=size, body="$DATA"),
        }[op]

    def stream(self, command, patience):
        body = {"command": "bash", "args": ["-c", command]}
        process = self.post("/v1/processes", body)["id"]
        return load(
            "sse",
            port=self.port,
            path=f"/v1/processes/{process}/logs?follow=true",
            encoding="base64",
            event='"exited"',
            timeout=patience,
        )


class Cloudflare(Peer):
    """The container server of @cloudflare/sandbox@0.3.7, run by bun, built as its Dockerfile builds it. Its pools of
    language interpreters are switched off by environment: they are not measured and their packages are not here."""

    NAME, LABEL = "cloudflare-0.3.7", "@cloudflare/sandbox 0.3.7"

    def __init__(self):
        bun = str(MODULES / "bun/bin/bun.exe")
        self.source = tempfile.TemporaryDirectory(prefix="conflux-peer-")
        folder = self.source.name + "/container-server"
        shutil.copytree(MODULES / "@cloudflare/sandbox/container_src", folder)
        subprocess.run(
            [bun, "build", "--target=node", "--format=cjs", "control-process.ts", "--outfile", "control-process.js"],
            cwd=folder,
            check=True,
            capture_output=True,
            env={**os.environ, "HOME": self.source.name},
        )
        pools = {f"{language}_POOL_MIN_SIZE": "0" for language in ("PYTHON", "JAVASCRIPT", "TYPESCRIPT")}
        super().__init__([bun, "index.ts"], 3000, "/api/ping", folder, pools)
        self.post("/api/session/create", {"id": "bench", "cwd": self.dir.name, "isolation": False})

    def ask(self, op, size=0):
        path = text_file(self.dir.name, size)
        return {
            "ping": dict(path="/api/ping"),
            "exec": dict(method="POST", path="/api/execute", body={"id": "bench", "command": "echo hi"}),
            "read": dict(method="POST", path="/api/read", body={"path": path, "sessionId": "bench"}),
            "write": dict(
                method="POST",
                path="/api/write",
                step_size=size,
                body='{"path":"%s.new","content":"$DATA","sessionId":"bench"}' % path,
            ),
        }[op]

    def stream(self, command, patience):
        return execute_stream(self.port, {"id": "bench", "command": command}, patience)

    def stop(self):
        super().stop()
        self.source.cleanup()


class Ours(Server):
    """Conflux over HTTP, as the peers are asked."""

    NAME, LABEL = "conflux", "Conflux, HTTP"

    def __init__(self):
        super().__init__()
        self.session()

    def ask(self, op, size=0):
        return {
            "ping": dict(path="/api/ping"),
            "exec": dict(method="POST", path="/api/execute", body={"command": "echo hi", "sessionId": "bench"}),
            "read": dict(method="POST", path="/api/read", body={"path": self.text_file(size)}),
            "write": dict(
                method="POST", path="/api/write", step_size=size, body='{"path":"%s/new","content":"$DATA"}' % self.work
            ),
        }[op]

    def stream(self, command, patience):
        return execute_stream(self.port, {"command": command, "sessionId": OFF}, patience)

    def rss(self, peak=False):
        return memory(self.server_pid(), peak) if peak else super().rss()


KINDS = (Ours, SandboxAgent, Cloudflare)
CALLS = (
    ("ping", "", 0, 1),
    ("ping", "", 0, 16),
    ("exec", "", 0, 1),
    ("exec", "", 0, 16),
    ("read", ".10KB", 10240, 1),
    ("write", ".10KB", 10240, 1),
    ("read", ".1MB", 1 << 20, 1),
    ("write", ".1MB", 1 << 20, 1),
)
# Paced and at full speed, 10 KB to 100 MB; each on a server of its own, since some do not survive it.
STREAMS = (
    (
        "paced",
        2000 * 77,
        "paced: 2,000 lines, one a millisecond",
        f"for i in {{1..2000}}; do echo {'A' * 76}; sleep 0.001; done",
    ),
    ("10KB", 10_000, "10 KB", "base64 -w76 /dev/zero | head -c 10000"),
    ("100KB", 100_000, "100 KB", "base64 -w76 /dev/zero | head -c 100000"),
    ("1MB", 1_000_000, "1 MB", "base64 -w76 /dev/zero | head -c 1000000"),
    ("100MB", 100_000_000, "100 MB", "base64 -w76 /dev/zero | head -c 100000000"),
)


def patience(b):
    """Seconds without a byte after which an answer is not awaited any more: one peer never ends a stream."""
    return 2 if b.args.quick else 5


def calls(b, method):
    with contextlib.ExitStack() as stack:
        servers = []
        for kind in KINDS:
            try:
                servers.append(stack.enter_context(kind()))
                b.add(f"peers.{kind.NAME}.rss", servers[-1].rss() / 1e6, f"idle memory, {kind.LABEL}", "MB", method)
                b.add(
                    f"peers.{kind.NAME}.start",
                    servers[-1].start_ms,
                    f"first answer after start, {kind.LABEL}",
                    "ms",
                    method,
                )
            except (Failed, OSError, subprocess.CalledProcessError) as e:
                b.fail(f"peers.{kind.NAME}", e)
        for op, tag, size, n in CALLS:
            for _ in range(b.args.rounds):
                for s in servers:
                    id = f"peers.{s.NAME}.{op}{tag}.{n}"
                    if id in b.failed:
                        continue
                    try:
                        r = load(
                            "calls",
                            port=s.port,
                            door="http",
                            inflight=n,
                            seconds=b.args.seconds,
                            timeout=patience(b),
                            **s.ask(op, size),
                        )
                        b.calls(id, r, f"{op} {tag[1:]}, {n} in flight, {s.LABEL}", method)
                    except Failed as e:
                        b.fail(id, e)
            b.say(
                f"{op} {tag[1:]}, {n} in flight: "
                + ", ".join(f"{s.NAME} {b.get(f'peers.{s.NAME}.{op}{tag}.{n}.p50') or 0:,.0f}" for s in servers)
                + " us p50"
            )


def streams(b, method):
    for name, size, title, command in STREAMS if not b.args.quick else STREAMS[1:4]:
        for kind in KINDS:
            id = f"peers.{kind.NAME}.stream.{name}"
            try:
                for _ in range(min(b.args.rounds, 2)):
                    with kind() as s:
                        r = s.stream(command, patience(b))
                        b.add(
                            f"{id}.lost",
                            (size - r["bytes"]) / size * 100,
                            f"share of the output that was lost, {title}, {kind.LABEL}",
                            "%",
                            method,
                        )
                        b.add(f"{id}.rate", r["MBps"], f"stream, {title}, {kind.LABEL}", "MB/s", method)
                        b.add(
                            f"{id}.complete",
                            int(r["complete"]),
                            f"end of the stream told, {title}, {kind.LABEL}",
                            "count",
                            method,
                        )
                        b.add(
                            f"{id}.rss",
                            s.rss(peak=True) / 1e6,
                            f"peak memory of the server, stream, {title}, {kind.LABEL}",
                            "MB",
                            method,
                        )
            except (Failed, OSError) as e:
                b.fail(id, e)
        b.say(
            f"stream, {title}: lost "
            + ", ".join(f"{k.NAME} {b.get(f'peers.{k.NAME}.stream.{name}.lost') or 0:.1f} %" for k in KINDS)
        )


def peers(b):
    method = b.method(
        "peers",
        """Conflux over HTTP, @sandbox-agent/cli-linux-x64 0.4.2 and the container server in @cloudflare/sandbox 0.3.7
        under bun 1.4.5, in turn, keep-alive connections, in a network namespace of their own. exec is `echo hi`: in a
        session (Conflux, Cloudflare), a program of its own (sandbox-agent has no sessions). read and write: 10 KB and 1
        MB of text (sandbox-agent raw, the others as JSON).""",
    )
    told = b.method(
        "peers.stream",
        """Output of one command as server-sent events: share of the bytes written that did not arrive when the end was
        told, the connection was closed, or nothing had come for 5 s; largest resident memory of the serving process.
        Each on a fresh server.""",
    )
    install()
    with own_network():
        calls(b, method)
        streams(b, told)


GROUPS = (("peers", "other control planes beside ours", peers),)
