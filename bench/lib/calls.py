"""Calls as users feel them: doors, numbers in flight, closed and open loop; what the first and what many cost."""
import os

from .procs import OFF, Failed, Raw, Server, load

DOORS = ("ws", "http", "http-close")
INFLIGHT = (1, 4, 16, 64, 200, 1000)
SHARES = (25, 50, 75, 90)


def execute(command, session):
    return dict(method="POST", path="/api/execute", body={"command": command, "sessionId": session})


def inflight(b, most):
    return [n for n in INFLIGHT if n <= most and (not b.args.quick or n in (1, 16, 64))]


def sweep(b, id, title, method, s, ask, most, raw=None):
    """Every door at every number in flight, the raw limit first, in turn."""
    for n in inflight(b, most):
        for _ in range(b.args.rounds):
            if raw:
                b.calls(f"{id}.raw.{n}", raw(n), f"raw limit of {title}, {n} in flight", method)
            for door in DOORS:
                try:
                    r = load("calls", port=s.port, door=door, inflight=n, seconds=b.args.seconds, **ask)
                except Failed as e:
                    b.fail(f"{id}.{door}.{n}", e)
                    continue
                b.calls(f"{id}.{door}.{n}", r, f"{title}, {door}, {n} in flight", method)
                b.add(
                    f"{id}.{door}.{n}.connections",
                    r["connections"],
                    f"connections made, {title}, {door}, {n} in flight",
                    "count",
                    method,
                )
        rates = ", ".join(
            f"{door} {b.get(f'{id}.{door}.{n}.rate') or 0:,.0f}" for door in (("raw",) if raw else ()) + DOORS
        )
        b.say(f"{title}, {n} in flight: {rates} /s")


def ping(b):
    method = b.method(
        "ping",
        """GET /api/ping, closed loop, over one WebSocket that carries all (ws), as many keep-alive connections as calls
        in flight (http), and a connection for each request (http-close). Raw: 64-byte messages to an epoll echo, behind
        the same client: it answers all that one read gives by one write, so with many in flight it tells what the
        socket can do, not what a server can that looks at each. Nothing pinned.""",
    )
    with Server() as s, Raw("echo-server") as echo:
        sweep(
            b,
            "ping",
            "ping",
            method,
            s,
            {},
            1000,
            lambda n: load("calls", port=echo.port, door="echo", inflight=n, seconds=b.args.seconds),
        )


def exec_builtin(b):
    method = b.method(
        "exec.session",
        "POST /api/execute of the builtin `:` in one session, where commands run one after another; doors as for ping.",
    )
    with Server() as s:
        sweep(b, "exec.session", "exec in a session", method, s, execute(":", s.session()), 1000)


def exec_fresh(b):
    method = b.method(
        "exec.fresh",
        """POST /api/execute of `true` without a session: a fresh bash for each. Raw: a posix_spawn loop of `bash -c
        true` with two pipes, as many at a time. All share the processors with the commands that they start.""",
    )
    with Server() as s:
        sweep(
            b,
            "exec.fresh",
            "exec without a session",
            method,
            s,
            execute("true", OFF),
            200,
            lambda n: load("spawn", inflight=n, seconds=b.args.seconds),
        )


SIZES = ((1 << 10, "1 KB"), (64 << 10, "64 KB"), (1 << 20, "1 MB"), (8 << 20, "8 MB"), (64 << 20, "64 MB"))
PIECE = 8 << 20


def read_ask(path, size):
    if size <= PIECE:
        return dict(method="POST", path="/api/read", body={"path": path})
    return dict(
        method="POST",
        path="/api/read",
        steps=size // PIECE,
        step_size=PIECE,
        body='{"path":"%s","offset":$OFFSET,"limit":%d}' % (path, PIECE),
    )


def write_ask(path, size):
    body = '{"path":"%s","content":"$DATA"}' % path
    if size <= PIECE:
        return dict(method="POST", path="/api/write", step_size=size, body=body)
    return dict(
        method="POST",
        path="/api/write",
        steps=size // PIECE,
        step_size=PIECE,
        body='{"path":"%s","uploadId":"u$ID","offset":$OFFSET,"final":$LAST,"content":"$DATA"}' % path,
    )


def file_calls(b):
    method = b.method(
        "file",
        """POST /api/read and /api/write of a text file of 76-column lines (as JSON), closed loop, one in flight. Over 8
        MB in pieces of 8 MB, one after another: ranged reads, a chunked upload. MB/s: bytes of the file by the median
        time.""",
    )
    with Server() as s:
        for size, name in SIZES if not b.args.quick else SIZES[:3]:
            path = s.text_file(size)
            for op, ask in (("read", read_ask(path, size)), ("write", write_ask(f"{s.work}/written", size))):
                for _ in range(b.args.rounds):
                    for door in DOORS:
                        r = load("calls", port=s.port, door=door, seconds=b.args.seconds, warmup=0.1, **ask)
                        b.calls(f"file.{op}.{door}.{size}", r, f"{op} {name}, {door}", method)
                        b.add(
                            f"file.{op}.{door}.{size}.bytes", size / r["p50us"], f"{op} {name}, {door}", "MB/s", method
                        )
                b.say(
                    f"{op} {name}: "
                    + ", ".join(f"{d} {b.get(f'file.{op}.{d}.{size}.bytes'):,.1f}" for d in DOORS)
                    + " MB/s"
                )


def reads(b):
    method = b.method("read", "POST /api/read of 1 KB of text, closed loop; doors as for ping.")
    with Server() as s:
        sweep(b, "read", "read 1 KB", method, s, read_ask(s.text_file(1024), 1024), 200)


def batch(b):
    method = b.method(
        "batch",
        """100 files of 1 KB read: the time until all are there. http-close and http: one after another; http6: by six
        keep-alive connections at a time, as a browser has them (100 by its rate); ws: all 100 requests at once on one
        WebSocket; batch: one POST /api/files/batch, over the WebSocket.""",
    )
    with Server() as s:
        body = {"path": s.text_file(1024)}
        ask = dict(method="POST", path="/api/read", body=body, seconds=b.args.seconds, port=s.port)
        operations = {"operations": [{"path": "/api/read", "body": body}] * 100}
        for _ in range(b.args.rounds):
            for name, more in (
                ("http-close", dict(door="http-close", steps=100)),
                ("http", dict(door="http", steps=100)),
                ("ws", dict(burst=100)),
                ("batch", dict(path="/api/files/batch", body=operations)),
            ):
                b.add(
                    f"batch.{name}",
                    load("calls", **{**ask, **more})["p50us"] / 1e3,
                    f"100 reads, {name}, median",
                    "ms",
                    method,
                )
            b.add(
                "batch.http6",
                1e5 / load("calls", door="http", inflight=6, **ask)["opsPerSec"],
                "100 reads, six HTTP connections",
                "ms",
                method,
            )
    b.say(
        "100 reads: "
        + ", ".join(f"{n} {b.get(f'batch.{n}'):.1f} ms" for n in ("http-close", "http", "http6", "ws", "batch"))
    )


def first(b):
    method = b.method(
        "first",
        """A call of a client that has no connection yet: connect, with the WebSocket its upgrade, ping, answer; one at
        a time, median.""",
    )
    with Server() as s:
        for _ in range(b.args.rounds):
            for door in ("http-close", "ws-close"):
                b.add(
                    f"first.{door}",
                    load("calls", port=s.port, door=door, seconds=b.args.seconds)["p50us"],
                    f"first call, {door}",
                    "us",
                    method,
                )
    b.say(f"first call: HTTP {b.get('first.http-close'):.0f} us, WebSocket {b.get('first.ws-close'):.0f} us")


def cost(b):
    n = 1000
    method = b.method(
        "cost",
        f"""{n:,} pings, 16 in flight: connections made, and requests that a Worker pays for (each HTTP request; a
        WebSocket is one), counted by the client.""",
    )
    with Server() as s:
        for door in DOORS:
            r = load("calls", port=s.port, door=door, inflight=16, ops=n, warmup=0, seconds=60)
            b.add(
                f"cost.{door}.connections",
                r["connections"],
                f"connections for {n:,} calls, {door}",
                "count",
                method,
                ("<=", 1) if door == "ws" else None,
            )
            b.add(
                f"cost.{door}.requests",
                r["requests"],
                f"sub-requests for {n:,} calls, {door}",
                "count",
                method,
                ("<=", 1) if door == "ws" else None,
            )
    b.say(f"{n:,} calls: " + ", ".join(f"{d} {b.get(f'cost.{d}.requests'):.0f} sub-requests" for d in DOORS))


def open_loop(b):
    method = b.method(
        "open",
        """Open loop: operations are due at a fixed rate, latency counts from then, so that a stall shows in all that it
        held up. The rate is a share of the median closed-loop maximum of the same door in the same run (ping 64, exec
        16 in flight). missed: without an answer 10 s after the end.""",
    )
    with Server() as s, Raw("echo-server") as echo:
        cases = [
            ("echo", "raw echo", dict(port=echo.port, door="echo"), 64),
            ("ping.ws", "ping, ws", dict(port=s.port), 64),
            ("ping.http", "ping, http", dict(port=s.port, door="http"), 64),
            ("exec.ws", "exec in a session, ws", dict(port=s.port, **execute(":", s.session())), 16),
        ]
        for id, title, ask, n in cases:
            closed = [
                load("calls", inflight=n, seconds=b.args.seconds, **ask)["opsPerSec"] for _ in range(b.args.rounds)
            ]
            most = sorted(closed)[len(closed) // 2]
            cap = n if ask.get("door") == "http" else 5000  # more connections than before would be another case
            for share in SHARES if not b.args.quick else (50, 90):
                for _ in range(b.args.rounds):
                    r = load("calls", inflight=cap, rate=most * share / 100, seconds=max(b.args.seconds, 1.0), **ask)
                    b.calls(f"open.{id}.{share}", r, f"{title}, at {share} % of its maximum", method)
                    b.add(
                        f"open.{id}.{share}.missed", r["missed"], f"unanswered, {title}, at {share} %", "count", method
                    )
            b.say(
                f"{title}: p99 "
                + ", ".join(
                    f"{share} % {b.get(f'open.{id}.{share}.p99'):,.0f}"
                    for share in SHARES
                    if b.get(f"open.{id}.{share}.p99")
                )
                + " us"
            )


def spine(b):
    """The first targets, measured as they always were, so that the history stays comparable."""
    secs = b.args.seconds
    method = b.method(
        "spine",
        """As in every run since the first one. Ping with one in flight: both ends pinned to one processor, raw and ours
        alike; with 64: server on one, client on the other. Raw: an epoll echo of 64 bytes, a posix_spawn loop of `bash
        -c true`. The ratio is that of a round.""",
    )
    with Server(cpus={0}) as s, Raw("echo-server", {0}) as echo:
        for n, cpu, target in ((1, {0}, {}), (64, {1} if (os.cpu_count() or 1) > 1 else {0}, {"rate": (">=", 300000)})):
            goal = (">=", 0.8) if n == 1 else (">=", 0.5)
            pair(
                b,
                f"spine.ping.{n}",
                f"ping, ws, {n} in flight, pinned",
                method,
                target,
                goal,
                lambda: load("calls", cpu, port=echo.port, door="echo", inflight=n, seconds=secs),
                lambda: load("calls", cpu, port=s.port, inflight=n, seconds=secs),
            )
    with Server() as s:
        session = s.session()
        alone = (
            ("spine.exec.builtin", "execute `:` in a session", execute(":", session), {}, {"p50": ("<=", 200)}),
            ("spine.exec.program", "execute /bin/true in a session", execute("/bin/true", session), {}, {}),
            (
                "spine.exec.paced",
                "execute `true`, sessionless, 100 a second",
                execute("true", OFF),
                dict(rate=100, inflight=16),
                {"p50": ("<=", 400)},
            ),
            ("spine.read.1k", "read 1 KB", read_ask(s.text_file(1024), 1024), {}, {}),
            ("spine.read.1m", "read 1 MB", read_ask(s.text_file(1 << 20), 1 << 20), {}, {"rate": (">=", 1200)}),
        )
        for id, title, ask, more, target in alone:
            pair(
                b,
                id,
                title,
                method,
                target,
                None,
                None,
                lambda: load("calls", port=s.port, seconds=max(secs, 1.0) if more else secs, **ask, **more),
            )
        for n in (1, 16):
            pair(
                b,
                f"spine.exec.fresh.{n}",
                f"execute `true`, sessionless, {n} in flight",
                method,
                {},
                (">=", 0.9) if n == 16 else None,
                lambda: load("spawn", inflight=n, seconds=secs),
                lambda: load("calls", port=s.port, inflight=n, seconds=secs, **execute("true", OFF)),
            )


def pair(b, id, title, method, targets, goal, raw, ours):
    for _ in range(b.args.rounds):
        x = b.calls(f"{id}.raw", raw(), f"raw limit of {title}", method) if raw else None
        y = b.calls(id, ours(), title, method, targets)
        if x:
            b.add(f"{id}.ratio", y["opsPerSec"] / x["opsPerSec"], f"{title}, by the raw limit", "ratio", method, goal)
    b.say(
        f"{title}: {b.get(id + '.rate'):,.0f}/s, p50 {b.get(id + '.p50'):,.1f} p99 {b.get(id + '.p99'):,.1f} us"
        + (f", ratio {b.get(id + '.ratio'):.2f}" if raw else "")
    )


GROUPS = (
    ("spine", "the first targets, measured as ever", spine),
    ("ping", "the smallest call, by door and number in flight", ping),
    (
        "exec",
        "commands, in a session and without, by door and number in flight",
        lambda b: (exec_builtin(b), exec_fresh(b)),
    ),
    ("read", "1 KB read, by door and number in flight", reads),
    ("file", "files of 1 KB to 64 MB read and written, by door", file_calls),
    ("batch", "100 reads, five ways", batch),
    ("first", "the first call of a client", first),
    ("cost", "connections and sub-requests", cost),
    ("open", "latency at a fixed rate, 25 to 90 % of the maximum", open_loop),
)
