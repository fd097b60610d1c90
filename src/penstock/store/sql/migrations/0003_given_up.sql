-- Runs before the code that needs it: code that does not know the table leaves it empty.
--
-- Works whose job was cancelled, or never became whole, while members of theirs were still there.

CREATE TABLE given_up (
    work text PRIMARY KEY,
    members text[] NOT NULL,
    reason text NOT NULL
);
