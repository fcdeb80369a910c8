"""Start-up, idle memory, a server that is killed, a machine that is busy, and what the machine itself gives."""
import os
import signal
import time

from .calls import execute
from .procs import OFF, Failed, Server, load

DURABLE = "i=0; while [ ! -e {stop} ]; do i=$((i+1)); echo line $i; done; echo $i"


def start(b):
    method = b.method(
        "start",
        """From the start of the program to the answer of its first ping (polled by nobody: the line that it prints is
        awaited); memory right after.""",
    )
    for _ in range(b.args.rounds * 2):
        with Server() as s:
            b.add("start.first", s.start_ms, "first answer after start", "ms", method, ("<=", 50))
            b.add("start.rss", s.rss() / 1e6, "idle memory of keeper and server", "MB", method, ("<=", 10))
    b.say(f"first answer after {b.get('start.first'):.1f} ms, idle memory {b.get('start.rss'):.1f} MB")


def await_answer(s):
    begin = time.monotonic()
    while time.monotonic() - begin < 10:
        try:
            s.call("GET", "/api/ping", timeout=5)
            return (time.monotonic() - begin) * 1000
        except OSError:
            time.sleep(0.0005)  # the interval of a probe: what is measured ends with the answer
    raise Failed("no answer within 10 s of kill -9")


def missing(s, stop):
    """Bytes of the durable process, by its own count of lines, that its log does not give."""
    with open(stop, "w"):
        pass
    s.get("/api/process/durable/wait?timeoutMs=20000")
    text, at, total = b"", 0, 1
    while at < total:
        r = s.get(f"/api/process/durable/logs?stream=stdout&from={at}&limit=1000000")
        if r["dropped"]:
            return r["dropped"]
        text, at, total = text + r["data"].encode(), r["next"], r["total"]
    count = text.split()[-1]
    want = b"".join(b"line %d\n" % i for i in range(1, int(count) + 1)) + count + b"\n"
    return len(want) - len(text) if want.startswith(text) else len(want)


def restart(b):
    method = b.method(
        "restart",
        """kill -9 of the server while a durable process writes numbered lines: time to the next answer, asked for every
        0.5 ms on new connections; at the end, bytes of the process that are missing from its log. 1.1 s between two
        kills: one that dies again within a second is taken to keep crashing.""",
    )
    with Server() as s:
        stop = s.work + "/stop"
        s.post("/api/process/start", {"command": DURABLE.format(stop=stop), "processId": "durable", "sessionId": OFF})
        for _ in range(20 if not b.args.quick else 3):
            time.sleep(1.1)
            os.kill(s.server_pid(), signal.SIGKILL)
            b.add("restart.answer", await_answer(s), "kill -9 to the next answer", "ms", method, ("<=", 100))
        b.add("restart.lost", missing(s, stop), "bytes lost of a durable process", "B", method, ("<=", 0))
    b.say(f"kill -9 to the next answer {b.get('restart.answer'):.1f} ms, {b.get('restart.lost'):.0f} bytes lost")


def busy(b):
    method = b.method(
        "busy",
        """Calls while a workload inside takes every processor four times over, and 1 GB of memory: ping and `true` in a
        fresh shell, one in flight.""",
    )
    touch = 'my $m = "x" x 1e9; for (;;) { for (my $i = 0; $i < 1e9; $i += 4096) { substr($m, $i, 1) = "y" } }'
    memory_hog = f"exec perl -e '{touch}'"
    with Server() as s:
        for i, command in enumerate(["while :; do :; done"] * (4 * (os.cpu_count() or 1)) + [memory_hog]):
            s.post("/api/process/start", {"command": command, "processId": f"hog-{i}", "sessionId": OFF})
        for _ in range(b.args.rounds):
            for name, ask in (("ping", {}), ("exec", execute("true", OFF))):
                b.calls(
                    f"busy.{name}",
                    load("calls", port=s.port, seconds=max(b.args.seconds, 1.0), **ask),
                    f"{name}, machine busy",
                    method,
                    {"p99": ("<=", 500000)},
                )
    b.say(
        f"machine busy: p99 of ping {b.get('busy.ping.p99') / 1e3:.1f} ms, "
        f"of exec {b.get('busy.exec.p99') / 1e3:.1f} ms"
    )


def raw(b):
    method = b.method(
        "raw",
        """What this machine gives: bytes through a pipe and through a loopback socket (64 KB writes, 256 KB reads, two
        threads), and SQLite transactions of one row with the registry's settings (WAL, synchronous NORMAL), in a
        folder like the server's.""",
    )
    with Server() as s:
        for _ in range(b.args.rounds):
            for name in ("pipe", "socket"):
                b.add(
                    f"raw.{name}", load(name, seconds=b.args.seconds)["MBps"], f"bytes through a {name}", "MB/s", method
                )
            b.add(
                "raw.commit",
                load("commit", seconds=b.args.seconds, file=s.dir.name + "/bench.db")["opsPerSec"],
                "SQLite commits",
                "/s",
                method,
            )
    b.say(
        f"pipe {b.get('raw.pipe'):,.0f} MB/s, socket {b.get('raw.socket'):,.0f} MB/s, "
        f"SQLite {b.get('raw.commit'):,.0f} commits/s"
    )


GROUPS = (
    ("start", "start-up and idle memory", start),
    ("restart", "kill -9 of the server, 20 times", restart),
    ("busy", "a workload that takes the whole machine", busy),
    ("raw", "pipe, socket and SQLite by themselves", raw),
)
