"""What grows with the number of things: memory of each, and the cost of a call beside them."""
from .procs import OFF, Raw, Server, Waiting, load

DECADES = (1, 10, 100, 1000, 10000)
# (id, title, what `hold` is asked for)
KINDS = (
    ("connection", "an idle WebSocket", lambda n: dict(conns=n, inflight=0)),
    (
        "pending",
        "a pending request (wait for a process)",
        lambda n: dict(inflight=n, path="/api/process/held/wait?timeoutMs=600000"),
    ),
    (
        "stream",
        "a stream that follows a process",
        lambda n: dict(inflight=n, path="/api/process/held/stream", event="process_info"),
    ),
)
TARGETS = {("connection", 1000): ("<=", 2000), ("pending", 10000): ("<=", 256)}


def gauge(server, name):
    for line in server.call("GET", "/metrics").decode().splitlines():
        if line.startswith(name + " "):
            return int(float(line.split()[1]))
    return 0


def memory(b):
    method = b.method(
        "memory",
        """A fresh server; a first hold of one, ended again, so that code and tables are there. Then N are held by the
        load program on one WebSocket (connections: on N), and the resident memory of keeper and server is read before
        and while they are held; the difference, by N. `seen`: what /metrics counts meanwhile.""",
    )
    for kind, title, ask in KINDS:
        for n in DECADES if not b.args.quick else (1, 100, 1000):
            for _ in range(min(b.args.rounds, 3)):
                with Server("--max-pending", "20000", "--max-connections", "20000") as s:
                    s.post(
                        "/api/process/start",
                        {"command": "echo first; exec sleep 1000", "processId": "held", "sessionId": OFF},
                    )
                    with Waiting("hold", port=s.port, **ask(1)):
                        pass
                    before = s.rss()
                    with Waiting("hold", port=s.port, **ask(n)):
                        each = (s.rss() - before) / n
                        seen = gauge(s, "conflux_websockets" if kind == "connection" else "conflux_pending_requests")
                    b.add(
                        f"memory.{kind}.{n}",
                        each,
                        f"memory of {title}, {n:,} of them",
                        "B",
                        method,
                        TARGETS.get((kind, n)),
                    )
                    b.add(f"memory.{kind}.{n}.seen", seen, f"/metrics says, {n:,} held", "count", method)
            b.say(f"{title}, {n:,}: {b.get(f'memory.{kind}.{n}'):,.0f} B each")


def flat_processes(b):
    few, many = 100, 10000 if not b.args.quick else 1000
    method = b.method(
        "flat.processes",
        f"""Two servers, one with {few} and one with {many:,} processes that have run and are registered (--history
        30000). Rounds of the same calls in turn; the ratio is the time of a call at {many:,} by that at {few}, closed
        loop, one in flight. Load program, server and commands are pinned to one processor: what is compared is their
        cost, not where they are woken. Beside it the processor time of keeper and server for each call, which other
        programs do not change.""",
    )
    asks = {
        "ping": {},
        "exec": dict(method="POST", path="/api/execute", body={"command": ":", "sessionId": "bench"}),
        "get": dict(path="/api/process/p-1"),
        "start": dict(
            method="POST",
            path="/api/process/start",
            body='{"args":["/bin/true"],"processId":"n-$ID","sessionId":"%s"}' % OFF,
        ),
    }
    with Server("--history", "30000", cpus={0}) as a, Server("--history", "30000", cpus={0}) as z:
        for s, n in ((a, few), (z, many)):
            s.session()
            b.say(f"registering {n:,} processes")
            load(
                "calls",
                port=s.port,
                inflight=16,
                ops=n,
                warmup=0,
                seconds=300,
                method="POST",
                path="/api/process/start",
                body='{"args":["/bin/true"],"sessionId":"%s"}' % OFF,
            )
            s.post("/api/process/start", {"args": ["/bin/true"], "processId": "p-1", "sessionId": OFF})
        compare(b, "flat.processes", method, a, z, asks, f"{few} to {many:,} processes")


def flat_connections(b):
    few, many = 10, 1000
    method = b.method(
        "flat.connections",
        f"""Two servers, one with {few} and one with {many:,} idle WebSockets. Rounds of the same calls on one more, in
        turn; the ratio is the time of a call at {many:,} by that at {few}, closed loop, one in flight, pinned to one
        processor.""",
    )
    asks = {"ping": {}, "exec": dict(method="POST", path="/api/execute", body={"command": ":", "sessionId": "bench"})}
    with Server(cpus={0}) as a, Server(cpus={0}) as z, Waiting("hold", port=a.port, conns=few, inflight=0), Waiting(
        "hold", port=z.port, conns=many, inflight=0
    ):
        a.session()
        z.session()
        compare(b, "flat.connections", method, a, z, asks, f"{few} to {many:,} idle connections")


def flat_active(b):
    few, many = 10, 1000
    method = b.method(
        "flat.active",
        f"""Pings with one in flight on each of {few} and of {many:,} WebSockets of one server, in turn, and the same
        with the raw echo; the ratio is the time of a call over the many by that over the few; 1,000 sockets fit the
        processor's caches worse than 10, which the echo pays as well. Both ends pinned to one processor.""",
    )
    with Server(cpus={0}) as s, Raw("echo-server", {0}) as raw:
        for _ in range(b.args.rounds):
            ratio = {}
            for name, ask in (("raw", dict(port=raw.port, door="echo")), ("ping", dict(port=s.port))):
                x, y = (load("calls", {0}, seconds=b.args.seconds, conns=n, **ask)["opsPerSec"] for n in (few, many))
                ratio[name] = b.add(
                    f"flat.active.{name}.ratio",
                    x / y,
                    f"cost of {name}, {few} to {many:,} active connections",
                    "ratio",
                    method,
                )
            b.add(
                "flat.active.beyond.ratio",
                ratio["ping"] / ratio["raw"],
                "the same, ping by raw echo",
                "ratio",
                method,
                ("<=", 1.1),
            )
    b.say(
        f"ping, {few} to {many:,} active connections: {b.get('flat.active.ping.ratio'):.2f}, "
        f"raw echo {b.get('flat.active.raw.ratio'):.2f}"
    )


def compare(b, id, method, a, z, asks, what):
    for name, ask in asks.items():
        for i in range(b.args.rounds):
            mean, cpu = {}, {}
            for s in [a, z] if i % 2 == 0 else [z, a]:
                before = s.cpu()
                r = load("calls", {0}, port=s.port, seconds=b.args.seconds, **ask)
                mean[s], cpu[s] = 1e6 / r["opsPerSec"], (s.cpu() - before) / r["begun"] / 1e3
            b.add(f"{id}.{name}.ratio", mean[z] / mean[a], f"cost of {name}, {what}", "ratio", method, ("<=", 1.1))
            b.add(
                f"{id}.{name}.cpu.ratio",
                cpu[z] / cpu[a],
                f"the server's processor time for {name}, {what}",
                "ratio",
                method,
            )
            for which, s in (("few", a), ("many", z)):
                b.add(f"{id}.{name}.{which}", mean[s], f"{name} at the {which}, mean", "us", method)
                b.add(
                    f"{id}.{name}.{which}.cpu",
                    cpu[s],
                    f"{name} at the {which}, the server's processor time",
                    "us",
                    method,
                )
        b.say(
            f"{name}, {what}: {b.get(f'{id}.{name}.ratio'):.2f}, processor time {b.get(f'{id}.{name}.cpu.ratio'):.2f}"
        )


GROUPS = (
    ("memory", "memory per connection, pending request and stream, 1 to 10,000", memory),
    (
        "flat",
        "cost of a call from 100 to 10,000 processes, from 10 to 1,000 connections",
        lambda b: (flat_processes(b), flat_connections(b), flat_active(b)),
    ),
)
