-- Runs before the code that needs it. Code of an earlier version does not find the renamed table and columns, so
-- stop it first.
--
-- Renames tables, columns, a view and JSON keys to the words that the code uses: `work` is `workload`, `given_up`
-- is `inadmissible`, and the keys in `jobs.detail` follow the fields of the scheduler's `Job` and `Member`.

ALTER TABLE given_up RENAME TO inadmissible;
ALTER TABLE inadmissible RENAME COLUMN work TO workload;
ALTER TABLE jobs RENAME COLUMN work TO workload;
ALTER VIEW awaited RENAME TO dependency_targets;

CREATE FUNCTION renamed(document jsonb, old_key text, new_key text) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN document ? old_key THEN document - old_key || jsonb_build_object(new_key, document -> old_key)
        ELSE document
    END
$$;

UPDATE jobs
SET detail = renamed(renamed(renamed(renamed(renamed(detail,
    'held', 'resources_by_node'),
    'parked', 'unsatisfiable_reason'),
    'work_gone', 'workload_gone'),
    'failed_by_world', 'infrastructure_failure'),
    'broken', 'incomplete_reason')
WHERE detail ?| ARRAY['held', 'parked', 'work_gone', 'failed_by_world', 'broken'];

UPDATE jobs
SET detail = jsonb_set(detail, '{members}', (
    SELECT jsonb_agg(renamed(member, 'owed', 'slot_release_pending') ORDER BY position)
    FROM jsonb_array_elements(detail -> 'members') WITH ORDINALITY AS m (member, position)
))
WHERE jsonb_path_exists(detail, '$.members[*].owed');

UPDATE jobs SET spec = renamed(spec, 'work', 'workload') WHERE workload <> '' AND spec ? 'work';

DROP FUNCTION renamed;
