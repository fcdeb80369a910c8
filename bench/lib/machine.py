"""Names the machine and the program that was measured."""
import os
import pathlib
import platform
import re
import subprocess
import time

from .procs import CONFLUX, ROOT


def _read(path, pattern, default="unknown"):
    try:
        found = re.search(pattern, pathlib.Path(path).read_text())
        return found.group(1).strip() if found else default
    except OSError:
        return default


def _git(*args):
    try:
        out = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True)
    except OSError:
        return "unknown"
    return out.stdout.rstrip() if out.returncode == 0 else "unknown"


def describe():
    status = _git("status", "--porcelain", "--untracked-files=no")
    changed = [line[3:] for line in status.splitlines()] if status != "unknown" else []
    return {
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed": sum(not name.startswith("bench/") for name in changed),
        "version": subprocess.run([CONFLUX, "--version"], capture_output=True, text=True).stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _read("/proc/cpuinfo", r"model name\s*: (.*)"),
        "processors": os.cpu_count(),
        "kernel": platform.release(),
        "memoryGB": round(int(_read("/proc/meminfo", r"MemTotal:\s+(\d+)", "0")) / 1e6, 1),
        "system": _read("/etc/os-release", r'PRETTY_NAME="(.*)"'),
        "loadAtStart": round(os.getloadavg()[0], 2),
    }
