CREATE TABLE exec (
    id            TEXT PRIMARY KEY,
    process_id    TEXT,
    kind          INTEGER NOT NULL,
    session       TEXT,
    command       TEXT NOT NULL,
    cwd           TEXT,
    fingerprint   BLOB NOT NULL,
    state         TEXT NOT NULL,
    pid           INTEGER NOT NULL,
    pid_start     INTEGER NOT NULL,
    started_ms    INTEGER NOT NULL,
    ended_ms      INTEGER NOT NULL,
    outcome       TEXT,
    exit_code     INTEGER NOT NULL,
    signal        INTEGER NOT NULL,
    stdout_total  INTEGER NOT NULL,
    stderr_total  INTEGER NOT NULL,
    stdout_drop   INTEGER NOT NULL,
    stderr_drop   INTEGER NOT NULL,
    max_rss       INTEGER NOT NULL,
    cpu_us        INTEGER NOT NULL,
    error         TEXT,
    error_errno   INTEGER NOT NULL,
    flags         INTEGER NOT NULL
) STRICT;
CREATE INDEX exec_started ON exec (started_ms);

CREATE TABLE session (
    id            TEXT PRIMARY KEY,
    cwd           TEXT,
    state         TEXT NOT NULL,
    created_ms    INTEGER NOT NULL,
    ended_ms      INTEGER NOT NULL,
    pid           INTEGER NOT NULL,
    pid_start     INTEGER NOT NULL
) STRICT;
