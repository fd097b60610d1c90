-- Runs before the code that needs it. Code of an earlier version does not find the renamed column and the dropped
-- table, so stop it first.
--
-- Members, slots, and the nodes of a job get tables of their own, so that an event writes the rows that it changes.
-- `jobs.detail` becomes `jobs.record`, the typed rest. Rows of released slots are deleted.

CREATE TABLE members (
    job bigint NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    key text NOT NULL,
    number bigint NOT NULL,
    index bigint NOT NULL,
    phase text NOT NULL,
    node text NOT NULL,
    slot bigint NOT NULL,
    data jsonb NOT NULL,
    PRIMARY KEY (job, key)
);

CREATE TABLE job_nodes (
    job bigint NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    node text NOT NULL,
    resources jsonb NOT NULL,
    PRIMARY KEY (job, node)
);

-- A slot belongs to a part of its job's allocation. No foreign key: both are written by the same statements, and
-- a check per slot would double the cost of a large start.
CREATE TABLE allocation_slots (
    job bigint NOT NULL,
    slot bigint NOT NULL,
    part bigint NOT NULL,
    data json NOT NULL,
    PRIMARY KEY (job, slot)
);
CREATE INDEX allocation_slots_by_part ON allocation_slots (job, part);

CREATE FUNCTION renamed(document jsonb, old_key text, new_key text) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN document ? old_key THEN document - old_key || jsonb_build_object(new_key, document -> old_key)
        ELSE document
    END
$$;

-- A key that a list names twice counted once, with the values of its last entry.
INSERT INTO members (job, key, number, index, phase, node, slot, data)
SELECT DISTINCT ON (jobs.id, member ->> 'key')
    jobs.id, member ->> 'key', position - 1, (member -> 'index')::bigint, member ->> 'phase',
    coalesce(member ->> 'node', ''), coalesce((member -> 'slot')::bigint, -1),
    renamed(
        jsonb_strip_nulls(member - ARRAY['key', 'index', 'phase', 'node', 'slot']),
        'recreated', 'is_recreated'
    )
FROM jobs
CROSS JOIN LATERAL jsonb_array_elements(coalesce(detail -> 'members', '[]')) WITH ORDINALITY AS m (member, position)
ORDER BY jobs.id, member ->> 'key', position DESC;

INSERT INTO job_nodes (job, node, resources)
SELECT jobs.id, node, resources
FROM jobs
CROSS JOIN LATERAL jsonb_each(coalesce(detail -> 'resources_by_node', '{}')) AS n (node, resources);

UPDATE members SET data = data - 'grants' WHERE data -> 'grants' = '[]';

-- Slots in use, and the numbers of parts and slots that were used so far. A part document has the keys `marks`
-- (every claim), `slots` and `placement`. All claims are kept: restoring a part drops those of released slots.
INSERT INTO allocation_slots (job, slot, part, data)
SELECT
    allocations.job, (slot -> 0)::bigint, allocations.part,
    jsonb_build_object('group', slot -> 1, 'node', slot -> 2, 'grants', slot -> 3)
FROM allocations
CROSS JOIN LATERAL jsonb_array_elements(coalesce(data::jsonb -> 'slots', '[]')) AS s (slot)
WHERE NOT EXISTS (
    SELECT FROM freed_slots AS f WHERE f.job = allocations.job AND f.slot = (s.slot -> 0)::bigint
);

ALTER TABLE jobs RENAME COLUMN detail TO record;

UPDATE jobs
SET record = record || made.numbers
FROM (
    SELECT
        job,
        jsonb_build_object(
            'parts_made', max(part) + 1,
            'slots_made', coalesce(max((slot -> 0)::bigint), -1) + 1
        ) AS numbers
    FROM allocations
    LEFT JOIN LATERAL jsonb_array_elements(coalesce(data::jsonb -> 'slots', '[]')) AS s (slot) ON true
    GROUP BY job
) AS made
WHERE jobs.id = made.job;

UPDATE allocations SET data = renamed(data::jsonb - 'slots', 'marks', 'claims')::json;
DELETE FROM allocations AS a
WHERE NOT EXISTS (SELECT FROM allocation_slots AS s WHERE s.job = a.job AND s.part = a.part);
DROP TABLE freed_slots;

UPDATE jobs
SET record = renamed(renamed(
    record - ARRAY['members', 'resources_by_node', 'unassembled', 'exception', 'promise'],
    'workload_gone', 'is_workload_gone'),
    'infrastructure_failure', 'is_infrastructure_failure')
    || CASE WHEN record ? 'unassembled' THEN '{"is_assembled": false}'::jsonb ELSE '{}' END
    || CASE
        WHEN record ? 'exception' AND record -> 'exception' <> '{}' THEN jsonb_build_object(
            'exception',
            jsonb_build_object(
                'type', coalesce(record #>> '{exception,type}', ''),
                'severity', coalesce(record #> '{exception,severity}', '0'),
                'note', coalesce(record #>> '{exception,note}', '')
            )
        )
        ELSE '{}'
    END
    || CASE
        WHEN record ? 'promise' THEN jsonb_build_object(
            'promise',
            jsonb_build_object(
                'first_at', record #> '{promise,0}', 'last_at', record #> '{promise,1}',
                'made_at', record #> '{promise,2}', 'is_reservation', record #> '{promise,3}'
            )
        )
        ELSE '{}'
    END;

DROP FUNCTION renamed;
