-- Runs before the code that needs it: code that does not know the column leaves it as it is.
--
-- Identity of the Kubernetes cluster that the recorded state belongs to. Empty until an instance first becomes
-- leader in a cluster.

ALTER TABLE instance ADD COLUMN cluster text NOT NULL DEFAULT '';
