-- Runs before the code that needs it. Code of an earlier version cannot read an eviction that is recorded with its
-- new name, so stop it first.
--
-- Evictions are intents of their own kind.

UPDATE intents SET kind = 'evict' WHERE kind = 'retract';
