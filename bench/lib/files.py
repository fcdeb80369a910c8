"""Files: 1 GB against dd through a socket."""
import os

from .procs import Server, load, memory


def big(b):
    size = 1_000_000_000 if not b.args.quick else 100_000_000
    method = b.method(
        "bigfile",
        f"""A file of {size:,} bytes by GET and PUT of /api/files/raw, by the time from connect to the end of the
        answer. Raw: dd with a socket for its output (or input, with fsync), bs=1M, and the same client. In turn; a
        written file is removed before the next round. The ratio is that of a round; memory is the server's growth of
        its peak over both.""",
    )
    with Server() as s:
        path = f"{s.work}/big"
        with open(path, "wb") as f:
            for _ in range(size // 1_000_000):
                f.write(b"A" * 1_000_000)
        before = memory(s.server_pid(), peak=True)
        for _ in range(b.args.rounds):
            x, y = load("dd-get", file=path), load("get", port=s.port, path="/api/files/raw?path=" + path)
            note(b, "read", method, x, y)
            x = load("dd-put", file=path + ".dd", size=size)
            os.unlink(path + ".dd")
            y = load("put", port=s.port, path=f"/api/files/raw?path={path}.put", size=size)
            os.unlink(path + ".put")
            note(b, "write", method, x, y)
        b.add(
            "bigfile.growth",
            (memory(s.server_pid(), peak=True) - before) / 1e6,
            "growth of the server's memory by 1 GB read and written",
            "MB",
            method,
            ("<=", 4),
        )
    for name in ("read", "write"):
        b.say(
            f"{name} 1 GB: {b.get(f'bigfile.{name}.rate'):,.0f} MB/s, dd {b.get(f'bigfile.{name}.raw.rate'):,.0f}, "
            f"ratio {b.get(f'bigfile.{name}.ratio'):.2f}"
        )


def note(b, name, method, raw, ours):
    b.add(f"bigfile.{name}.raw.rate", raw["MBps"], f"{name} of a big file, dd through a socket", "MB/s", method)
    b.add(f"bigfile.{name}.rate", ours["MBps"], f"{name} of a big file", "MB/s", method)
    b.add(
        f"bigfile.{name}.ratio", ours["MBps"] / raw["MBps"], f"{name} of a big file by dd", "ratio", method, (">=", 0.7)
    )


GROUPS = (("bigfile", "1 GB read and written against dd through a socket", big),)
