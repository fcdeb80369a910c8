-- Of a long command the row has the head: 0 is a row from before, which has the whole.
ALTER TABLE exec ADD COLUMN command_length INTEGER NOT NULL DEFAULT 0;
ALTER TABLE exec ADD COLUMN command_sha256 BLOB;
