#!/usr/bin/env python3
"""Fails when an #include goes up, or sideways where it must not: transport > handlers > services > registry, keeper > base.

usage: tests/layers.py [ROOT]     prints file:line: reason for each, exit status 1 when there is one
"""
import pathlib
import re
import sys

BASE, LOW, SERVICES, HANDLERS, TRANSPORT, TOP = range(6)

# First match wins: pattern of the path, layer's name, height. What has the same height but another name is sideways.
LAYERS = [
    (r"controlplane/base/", "base", BASE),
    (r"schema/", "schema", BASE),
    (r"controlplane/keeper/(client|wire|exit)[^/]*$", "keeper protocol", LOW),
    (r"controlplane/keeper/", "keeper process", LOW),
    (r"controlplane/registry/", "registry", LOW),
    (r"controlplane/services/(archive|files|path|tar|watch_glob)[^/]*$", "files", LOW),
    (r"controlplane/services/", "services", SERVICES),
    (r"transport/(frame|handshake)[^/]*$", "codec", LOW),
    (r"transport/client/", "client library", LOW),
    (r"handlers/", "handlers", HANDLERS),
    (r"transport/", "transport", TRANSPORT),
    (r"controlplane/cli/", "command line", SERVICES),
    (r"controlplane/[^/]*$", "program", TOP),
]
# Sideways that is meant.
MAY_ALSO = {("keeper process", "keeper protocol"), ("client library", "codec")}
# Downwards that is not: the keeper process is linked into nobody but its own program.
MAY_NOT = {(upper, "keeper process") for upper in ("services", "handlers", "transport", "command line")}
# The command line is a user of the library: its public header, base, and what is done to files alone.
MAY_NOT |= {("command line", low) for low in ("keeper protocol", "registry", "codec")}

# Libraries, and where alone they may be seen. The keeper sees libc only.
LIBRARIES = [
    (r"sqlite3\.h$", r"controlplane/registry/", "SQL stays in registry/"),
    (r"civetweb\.h$", r"transport/", "CivetWeb stays in transport/"),
    (r"yyjson\.h$", r"controlplane/base/json", "use base/json.h"),
    (r"(curl|openssl)/", r"transport/client/", "clients only: the server does not link it"),
    (r"base/json\.h$", r"(?!controlplane/keeper/|controlplane/base/(?!json))", "must stay free of JSON"),
]
DEF_USERS = r"controlplane/|handlers/"
SQL_TEXT = re.compile(r'"\s*(SELECT\s|INSERT\s+(OR\s+\w+\s+)?INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s|CREATE\s+TABLE\s)')
INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^">]+)[">]')
PRODUCT = ("controlplane", "handlers", "transport")


def layer_of(path):
    for pattern, name, height in LAYERS:
        if re.match(pattern, path):
            return name, height
    return None


def resolve(root, source, included):
    """The path from root of a header that is ours, as the compiler would find it; None for a system header."""
    for folder in ((root / source).parent, root, root / "controlplane"):
        path = folder / included
        if path.is_file() and path.resolve().is_relative_to(root):
            return path.resolve().relative_to(root).as_posix()
    return None


def check_include(root, source, included):
    for pattern, where, reason in LIBRARIES:
        if re.search(pattern, included) and not re.match(where, source):
            return f"includes {included}: {reason}"
    target = resolve(root, source, included)
    if target is None:
        return None
    if source.startswith("controlplane/cli/") and target.startswith("transport/client/"):
        return f"includes {included}: only <conflux/client.h>"
    if target.endswith(".def") and not re.match(DEF_USERS, source):
        return f"includes {target}: only base, controlplane and handlers may"
    to = layer_of(target)
    if to is None:
        return f"includes {target}: not part of the product"
    (name, height), (to_name, to_height) = layer_of(source), to
    if to_name == name or (name, to_name) in MAY_ALSO:
        return None
    if to_height > height:
        return f"{name} includes {target}: goes up, to {to_name}"
    if (to_height == height and height != BASE) or (name, to_name) in MAY_NOT:
        return f"{name} includes {target}: {to_name} is not for it"
    return None


def check_file(root, source):
    for number, line in enumerate((root / source).read_text().splitlines(), 1):
        include = INCLUDE.match(line)
        reason = check_include(root, source, include.group(1)) if include else None
        if SQL_TEXT.search(line) and not source.startswith("controlplane/registry/"):
            reason = "SQL stays in registry/"
        if reason:
            yield f"{source}:{number}: {reason}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    sources = sorted(p.relative_to(root).as_posix() for top in PRODUCT for p in (root / top).rglob("*.[ch]"))
    found = [line for source in sources for line in check_file(root, source)]
    print("\n".join(found) if found else f"layers: {len(sources)} files, all includes go down")
    return 1 if found else 0


sys.exit(main())
