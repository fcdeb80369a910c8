"""The plots: each asks a question in its title, and answers it."""
import re

from .chart import NAMES, bars, lines, seconds, setup


def points(book, pattern):
    """(x, low, median, high) of the figures whose id matches; x is its one group."""
    return sorted((float(m.group(1)), min(f.values), f.median, max(f.values)) for m, f in book.matching(pattern))


def doors(book, op, short):
    return [
        (d, NAMES[d], points(book, rf"{op}\.{re.escape(d)}\.(\d+)\.{short}"))
        for d in ("raw", "ws", "http", "http-close")
    ]


def ticks(series):
    return sorted({p[0] for s in series for p in s[2]})


def throughput(plt, book, out):
    s = doors(book, "ping", "rate")
    return lines(
        plt,
        out,
        "How many small calls a second does each transport carry?",
        "calls in flight (log)",
        "pings per second (log)",
        s,
        ticks(s),
    )


def latency(plt, book, out):
    s = doors(book, "ping", "p99")
    return lines(
        plt,
        out,
        "How long does the slowest 1 % of small calls take?",
        "calls in flight (log)",
        "p99 of a ping (log)",
        s,
        ticks(s),
        seconds,
    )


def commands(plt, book, out):
    s = doors(book, "exec.fresh", "rate")
    return lines(
        plt,
        out,
        "How many commands a second, a fresh shell for each?",
        "commands in flight (log)",
        "commands per second (log)",
        s,
        ticks(s),
    )


def session(plt, book, out):
    s = doors(book, "exec.session", "p50")[1:]
    return lines(
        plt,
        out,
        "How long does a command in a session take?",
        "calls in flight, run one after another (log)",
        "median (log)",
        s,
        ticks(s),
        seconds,
    )


def files(plt, book, out):
    s = [(d, f"{NAMES[d]}", points(book, rf"file\.read\.{d}\.(\d+)\.p50")) for d in ("ws", "http", "http-close")]
    size = lambda v, _=None: f"{v / (1 << 20):g} MB" if v >= 1 << 20 else f"{v / 1024:g} KB"
    return lines(
        plt,
        out,
        "How long does reading a file take?",
        "size of the file (log)",
        "median of a read (log)",
        s,
        ticks(s),
        seconds,
        size,
    )


def rates(plt, book, out):
    labels = (
        ("raw", "raw echo", "echo"),
        ("ws", "ping, WebSocket", r"ping\.ws"),
        ("http", "ping, HTTP", r"ping\.http"),
        ("stream", "exec, WebSocket", r"exec\.ws"),
    )
    s = [(key, label, points(book, rf"open\.{id}\.(\d+)\.p99")) for key, label, id in labels]
    return lines(
        plt,
        out,
        "What happens to the slowest 1 % as the server nears its limit?",
        "rate, % of the closed-loop maximum (latency from the due time)",
        "p99 (log)",
        s,
        ticks(s),
        seconds,
        lambda v: f"{v:g} %",
        linear_x=True,
    )


def memory(plt, book, out):
    s = [
        (k, label, [p for p in points(book, rf"memory\.{k}\.(\d+)") if p[2] > 0])
        for k, label in (("connection", "idle WebSocket"), ("stream", "active stream"), ("pending", "pending request"))
    ]
    s = [(k, label, [(x, max(low, 1), mid, high) for x, low, mid, high in pts if x >= 10]) for k, label, pts in s]
    return lines(
        plt,
        out,
        "What does one more cost the server in memory?",
        "how many are held (log)",
        "bytes each (log)",
        s,
        ticks(s),
        lambda v, _=None: f"{v:,.0f} B",
        limit=(256, "target for a pending request: 256 B"),
    )


def row(book, id, key, label):
    f = book.figures.get(id)
    return [(key, label, min(f.values), f.median, max(f.values))] if f else []


def mixed(plt, book, out):
    rows = []
    for name, what in (
        ("closed", "one after another"),
        ("100", "100 a second"),
        ("1000", "1,000 a second"),
        ("1000.rcvbuf", "1,000 a second, 128 KB buffer"),
        ("1000.window", "1,000 a second, window of 1 MB"),
    ):
        rows += row(book, f"mixed.{name}.raw.p99", "raw", f"{what}: raw limit") + row(
            book, f"mixed.{name}.ws.p99", "ws", f"{what}: one WebSocket"
        )
    return bars(
        plt,
        out,
        "How long does a small call wait beside a full-speed stream?",
        "p99 of a ping on the same socket (log)",
        rows,
        seconds,
        (2000, "target 2 ms"),
    )


def batch(plt, book, out):
    rows = (
        row(book, "batch.http-close", "http-close", "HTTP, a connection each")
        + row(book, "batch.http", "http", "HTTP keep-alive, one by one")
        + row(book, "batch.http6", "http", "HTTP keep-alive, six at a time")
        + row(book, "batch.ws", "ws", "one WebSocket, all at once")
        + row(book, "batch.batch", "ws", "one batch request")
    )
    return bars(
        plt,
        out,
        "How long until 100 small files are read?",
        "milliseconds until all are there",
        rows,
        lambda v, _=None: f"{v:.3g}",
        log=False,
    )


def big(plt, book, out):
    rows = []
    for id, what in (("read", "read 1 GB"), ("write", "write 1 GB")):
        rows += row(book, f"bigfile.{id}.raw.rate", "raw", f"{what}: dd through a socket") + row(
            book, f"bigfile.{id}.rate", "http", f"{what}: Conflux"
        )
    rows += row(book, "stream.ws.base64.rate", "ws", "output of base64: WebSocket") + row(
        book, "stream.http.base64.rate", "http", "output of base64: HTTP"
    )
    return bars(
        plt,
        out,
        "How fast do big things go through?",
        "MB/s (1 MB = 1,000,000 bytes)",
        rows,
        lambda v, _=None: f"{v:,.0f}",
        log=False,
    )


def growth(plt, book, out):
    rows = []
    for id, what in (
        ("processes.ping", "ping, 100 to 10,000 processes"),
        ("processes.get", "get a process, 100 to 10,000"),
        ("processes.start", "start one, 100 to 10,000"),
        ("processes.exec", "exec, 100 to 10,000 processes"),
        ("connections.ping", "ping, 10 to 1,000 idle connections"),
        ("connections.exec", "exec, 10 to 1,000 idle connections"),
        ("active.ping", "ping, 10 to 1,000 active connections"),
    ):
        rows += row(book, f"flat.{id}.ratio", "ws", what)
    rows += row(book, "flat.active.raw.ratio", "raw", "raw echo, 10 to 1,000 active connections")
    return bars(
        plt,
        out,
        "Does a call cost more when there is a hundred times more?",
        "time of a call at the many by that at the few",
        rows,
        lambda v, _=None: f"{v:.3g} ×",
        (1.1, "target 1.1 ×"),
        log=False,
    )


def peers(plt, book, out):
    rows = []
    for op, what in (
        ("ping.1", "ping"),
        ("exec.1", "echo hi"),
        ("read.10KB.1", "read 10 KB"),
        ("write.10KB.1", "write 10 KB"),
    ):
        for name in ("conflux", "sandbox-agent", "cloudflare-0.3.7"):
            rows += row(book, f"peers.{name}.{op}.p50", name, f"{what}: {name}")
    return bars(
        plt, out, "How long does a call take here and elsewhere? (HTTP, one at a time)", "median (log)", rows, seconds
    )


def losses(plt, book, out):
    rows = []
    for tag, what in (
        ("paced", "154 KB in 2 s"),
        ("10KB", "10 KB"),
        ("100KB", "100 KB"),
        ("1MB", "1 MB"),
        ("100MB", "100 MB"),
    ):
        for name in ("conflux", "sandbox-agent", "cloudflare-0.3.7"):
            rows += row(book, f"peers.{name}.stream.{tag}.lost", name, f"{what}: {name}")
    return bars(
        plt,
        out,
        "How much of a command's output never arrives?",
        "share of the bytes written that did not arrive in the stream, %",
        rows,
        lambda v, _=None: f"{v:.3g} %",
        log=False,
    )


PLOTS = (
    ("throughput", "ping.ws.1.rate", throughput),
    ("latency", "ping.ws.1.p99", latency),
    ("commands", "exec.fresh.ws.1.rate", commands),
    ("session", "exec.session.ws.1.p50", session),
    ("files", "file.read.ws.1024.p50", files),
    ("batch", "batch.ws", batch),
    ("big", "bigfile.read.rate", big),
    ("mixed", "mixed.100.ws.p99", mixed),
    ("rates", "open.ping.ws.50.p99", rates),
    ("memory", "memory.pending.100", memory),
    ("growth", "flat.processes.ping.ratio", growth),
    ("peers", "peers.conflux.ping.1.p50", peers),
    ("losses", "peers.conflux.stream.10KB.lost", losses),
)


def draw(book, folder):
    """Those for which there are figures; (name, title) of each."""
    try:
        plt = setup()
    except ImportError:
        book.say("no plots: python3-matplotlib is missing")
        return []
    drawn = []
    for name, needs, plot in PLOTS:
        if needs in book.figures:
            drawn.append((name, plot(plt, book, folder / f"{name}.svg")))
    return drawn
