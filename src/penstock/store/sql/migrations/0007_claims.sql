-- Runs before the code that needs it: code that does not know the table leaves it empty.
--
-- The nodes that a pending job claims, because it has waited too long behind work without an end.

CREATE TABLE claims (
    job bigint PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    nodes text[] NOT NULL,
    made_at double precision NOT NULL
);
