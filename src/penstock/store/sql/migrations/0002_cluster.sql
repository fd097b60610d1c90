-- Runs before the code that needs it: code that does not know the column leaves it as it is.
--
-- The cluster that everything here is about; empty until an instance first comes into office in one.

ALTER TABLE instance ADD COLUMN cluster text NOT NULL DEFAULT '';
