-- Runs before the code that needs it: code that does not know the table leaves it empty.
--
-- Workloads whose job was cancelled, or never assembled completely, while members still existed. Migration 4
-- renames the table to `inadmissible`.

CREATE TABLE given_up (
    work text PRIMARY KEY,
    members text[] NOT NULL,
    reason text NOT NULL
);
