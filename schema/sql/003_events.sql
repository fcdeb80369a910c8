CREATE TABLE event (
    id            INTEGER PRIMARY KEY,
    type          TEXT NOT NULL,
    at_ms         INTEGER NOT NULL,
    process_id    TEXT,
    exec_id       TEXT,
    session       TEXT,
    pid           INTEGER NOT NULL,
    exit_code     INTEGER,
    signal        INTEGER NOT NULL,
    outcome       TEXT,
    stream        TEXT,
    bytes         INTEGER NOT NULL
) STRICT;

-- Ids begin at the clock, in milliseconds: a client that knew a log which is gone finds larger ids here.
CREATE TABLE event_log (first INTEGER NOT NULL) STRICT;
INSERT INTO event_log(first) VALUES (CAST(strftime('%s', 'now') AS INTEGER) * 1000);
