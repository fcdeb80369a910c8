"""Streams: how fast, how complete, and what they do to small calls on the same socket."""
from .procs import OFF, Raw, Server, load, memory

KINDS = {"base64": "base64 -w76 /dev/zero", "yes": "yes"}


def command(kind, size):
    return {"command": f"{KINDS[kind]} | head -c {size}", "sessionId": OFF}


def stream(b):
    size = 1_000_000_000 if not b.args.quick else 100_000_000
    method = b.method(
        "stream",
        f"""execute/stream of a command that writes {size:,} bytes (base64 text of 76 columns; `yes`, whose lines are
        two bytes): bytes of its output that arrive, by the time from the request to the end; how many of those written
        did not arrive; and the largest resident memory of the server. Over one WebSocket, and as server-sent events
        over HTTP.""",
    )
    for kind in KINDS:
        with Server() as s:
            for _ in range(min(b.args.rounds, 3)):
                ws = load("stream", port=s.port, body=command(kind, size))
                sse = load(
                    "sse",
                    port=s.port,
                    method="POST",
                    path="/api/execute/stream",
                    body=command(kind, size),
                    event='"complete"',
                )
                b.add(
                    f"stream.ws.{kind}.rate",
                    ws["MBps"],
                    f"stream of {kind}, WebSocket",
                    "MB/s",
                    method,
                    (">=", 600) if kind == "base64" else None,
                )
                b.add(f"stream.http.{kind}.rate", sse["MBps"], f"stream of {kind}, HTTP", "MB/s", method)
                for door, r in (("ws", ws), ("http", sse)):
                    b.add(
                        f"stream.{door}.{kind}.lost", size - r["bytes"], f"bytes lost, {door}", "B", method, ("<=", 0)
                    )
            b.add(
                f"stream.{kind}.rss",
                memory(s.server_pid(), peak=True) / 1e6,
                f"server's peak memory, stream of {kind}",
                "MB",
                method,
                ("<=", 24),
            )
        b.say(
            f"stream of {kind}: WebSocket {b.get(f'stream.ws.{kind}.rate'):,.0f} MB/s, "
            f"HTTP {b.get(f'stream.http.{kind}.rate'):,.0f} MB/s, "
            f"peak {b.get(f'stream.{kind}.rss'):.1f} MB"
        )


# (id, rate, with a stream beside, options of the client, its name in titles, target of the p99)
MIXED = (
    ("alone.closed", None, False, {}, "", None),
    ("closed", None, True, {}, "", None),
    ("100", 100, True, {}, "", None),
    ("1000", 1000, True, {}, "", ("<=", 2000)),
    ("1000.rcvbuf", 1000, True, {"rcvbuf": 128 << 10}, ", small receive buffer", ("<=", 2000)),
    ("1000.window", 1000, True, {"window": 1 << 20}, ", window of 1 MB", ("<=", 2000)),
)


def mixed_round(b, row, s, raw, method):
    name, rate, beside, options, what, target = row
    common = dict(seconds=max(b.args.seconds, 1.0), rate=rate, inflight=1000 if rate else 1, **options)
    command = {"command": KINDS["base64"], "sessionId": OFF}
    x = load("calls", port=raw.port, door="mux", beside=KINDS["base64"] if beside else None, **common)
    y = load("calls", port=s.port, beside=command if beside else None, **common)
    title = (
        "ping"
        + (f" at {rate}/s" if rate else ", closed loop")
        + (" beside a full-speed stream" if beside else ", no stream")
        + what
    )
    b.calls(f"mixed.{name}.raw", x, f"raw {title}", method)
    b.calls(f"mixed.{name}.ws", y, title, method, {"p99": target})
    if beside:
        b.add(f"mixed.{name}.raw.stream", x["besideMBps"], f"raw stream meanwhile, {title}", "MB/s", method)
        b.add(f"mixed.{name}.ws.stream", y["besideMBps"], f"stream meanwhile, {title}", "MB/s", method)


def mixed(b):
    method = b.method(
        "mixed",
        """Pings on a WebSocket on which an endless `base64 -w76 /dev/zero` streams at full speed: closed loop with one
        in flight, and open loop at 100 and 1,000 a second, latency from the moment each was due. Raw: one thread that
        copies the same command's pipe to a socket in 64 KB frames with TCP_NOTSENT_LOWAT and answers 64-byte calls
        between them, behind the same client. rcvbuf: the client has a receive buffer of 128 KB, where the kernel would
        let it grow to megabytes, all of which lie before an answer. window: the stream is asked for with 1 MB of
        credit, as libconflux and conflux-client ask for theirs. Four processes share the processors: the load program,
        the server, base64, and for the server its splicing thread.""",
    )
    with Server() as s, Raw("mux-server") as raw:
        # All in each round: what disturbs the machine for seconds is one value of each row, not all values of one.
        for _ in range(b.args.rounds):
            for row in MIXED:
                mixed_round(b, row, s, raw, method)
        for name, *_ in MIXED:
            b.say(
                f"mixed {name}: p50 {b.get(f'mixed.{name}.ws.p50'):,.0f} p99 {b.get(f'mixed.{name}.ws.p99'):,.0f} "
                f"p99.9 {b.get(f'mixed.{name}.ws.p999'):,.0f} us; "
                f"raw p99 {b.get(f'mixed.{name}.raw.p99'):,.0f} us"
            )


GROUPS = (
    ("stream", "1 GB of output of a command", stream),
    ("mixed", "small calls beside a full-speed stream on one socket", mixed),
)
