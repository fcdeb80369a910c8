"""Figures: what was measured, in which unit, by which method, in how many rounds."""
import csv
import json
import math
import re
import statistics
import sys
import time

FIELDS = ("id", "title", "unit", "rounds", "min", "median", "max", "method", "target", "met")
HISTORY = ("date", "commit", "id", "median", "unit")
UNITS = {"/s", "us", "ms", "MB", "MB/s", "B", "ratio", "count", "%"}


class Figure:
    """target: ("<=" or ">=", number) or None."""

    def __init__(self, id, title, unit, method, target=None):
        assert unit in UNITS, unit
        self.id, self.title, self.unit, self.method, self.target, self.values = id, title, unit, method, target, []

    def add(self, value):
        if not math.isfinite(value):
            raise ValueError(f"{self.id}: {value}")
        self.values.append(value)

    @property
    def median(self):
        return statistics.median(self.values)

    @property
    def met(self):
        if not self.target:
            return None
        return self.median <= self.target[1] if self.target[0] == "<=" else self.median >= self.target[1]

    def row(self):
        rounded = lambda v: float(f"{v:.5g}")
        return {
            "id": self.id,
            "title": self.title,
            "unit": self.unit,
            "rounds": len(self.values),
            "min": rounded(min(self.values)),
            "median": rounded(self.median),
            "max": rounded(max(self.values)),
            "method": self.method,
            "target": f"{self.target[0]} {self.target[1]:g}" if self.target else "",
            "met": "" if self.met is None else "yes" if self.met else "no",
        }


class Book:
    """All figures of a run, in the order in which they came; and what could not be measured, with the reason."""

    def __init__(self, args, machine):
        self.args, self.machine, self.figures, self.failed, self.methods = args, machine, {}, {}, {}
        self.started = time.monotonic()

    def method(self, id, text):
        """Registers how a figure is made; the id."""
        self.methods[id] = " ".join(text.split())
        return id

    def add(self, id, value, title, unit, method, target=None):
        if id not in self.figures:
            assert method in self.methods, method
            self.figures[id] = Figure(id, title, unit, method, target)
        self.figures[id].add(value)
        return value

    def calls(self, id, report, title, method, targets=None):
        """What a report of the load program tells of calls: rate and percentiles."""
        targets = targets or {}
        for key, short, unit in (
            ("opsPerSec", "rate", "/s"),
            ("p50us", "p50", "us"),
            ("p90us", "p90", "us"),
            ("p99us", "p99", "us"),
            ("p999us", "p999", "us"),
            ("maxus", "max", "us"),
        ):
            self.add(f"{id}.{short}", report[key], f"{title}, {short}", unit, method, targets.get(short))
        return report

    def fail(self, id, reason):
        self.failed[id] = str(reason)
        self.say(f"  {id}: not measured: {reason}")

    def get(self, id):
        f = self.figures.get(id)
        return f.median if f else None

    def matching(self, pattern):
        """(match, figure) of each id that the pattern matches as a whole."""
        return [(m, f) for f in self.figures.values() if (m := re.fullmatch(pattern, f.id))]

    def say(self, text):
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", file=sys.stderr, flush=True)

    def write_csv(self, path):
        with open(path, "w", newline="") as f:
            w = csv.DictWriter(f, FIELDS, lineterminator="\n")
            w.writeheader()
            w.writerows(f.row() for f in self.figures.values())

    def write_history(self, path):
        """Adds the figures that are followed from run to run, in place of those of the same commit."""
        old = read_history(path)
        followed = list(dict.fromkeys(r["id"] for r in old))
        now = [
            {
                "date": self.machine["date"],
                "commit": self.machine["commit"],
                "id": id,
                "median": self.figures[id].row()["median"],
                "unit": self.figures[id].unit,
            }
            for id in followed
            if id in self.figures
        ]
        with open(path, "w", newline="") as f:
            w = csv.DictWriter(f, HISTORY, lineterminator="\n")
            w.writeheader()
            w.writerows([r for r in old if r["commit"] != self.machine["commit"]] + now)

    def write_json(self, path):
        with open(path, "w") as f:
            json.dump(
                {
                    "machine": self.machine,
                    "methods": self.methods,
                    "failed": self.failed,
                    "figures": [f.row() for f in self.figures.values()],
                },
                f,
                indent=1,
                ensure_ascii=False,
            )
            f.write("\n")


def read_history(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))
