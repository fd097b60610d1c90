-- prepare_session
-- A commit is on disk when it returns, whatever the server's default. A stopped process must not keep the
-- fence locked: the server ends its transaction.
SELECT
    set_config('synchronous_commit', 'on', false),
    set_config('idle_in_transaction_session_timeout', '30s', false),
    set_config('application_name', 'penstock', false)

-- schema_is_there
-- Whether any migration has run in this database. Read from the catalogue, because a lookup by name may
-- answer from before the lock that we waited for.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relname = 'instance' AND c.relkind = 'r' AND n.nspname = current_schema()
)

-- schema_version
-- Which migration ran last.
SELECT schema_version FROM instance

-- lock_schema
-- One migrates at a time; the lock goes with the transaction. The number is the word "penstock".
SELECT pg_advisory_xact_lock(8097873591115181931)

-- set_schema_version
-- Remembers that a migration has run.
UPDATE instance SET schema_version = %(version)s

-- lock_epoch
-- The fence: whoever holds this row is the only one that writes.
SELECT epoch FROM instance FOR UPDATE

-- read_epoch
-- A look at the fence by one who writes nothing: a lock would cost a flush to disk.
SELECT epoch FROM instance

-- claim_cluster
-- Ties everything here to a cluster, unless it is tied to one already.
UPDATE instance SET cluster = CASE cluster WHEN '' THEN %(cluster)s ELSE cluster END
RETURNING cluster

-- begin_epoch
-- Shuts out every older epoch. The first one sets the beginning.
UPDATE instance SET epoch = epoch + 1, began_at = coalesce(began_at, %(now)s)
RETURNING epoch, began_at, highest_job, highest_intent, highest_rank

-- raise_highest
-- Ids are never given twice, so these only rise.
UPDATE instance
SET
    highest_job = greatest(highest_job, %(job)s),
    highest_intent = greatest(highest_intent, %(intent)s),
    highest_rank = greatest(highest_rank, %(rank)s)

-- copy_jobs
-- Jobs that are new, each with the last that was said of it.
COPY jobs (
    id, owner, name, seen_at, spec, workload, key,
    state, queue, urgency, priority, result, status, started_at, ended_at, detail
) FROM STDIN

-- copy_events
-- More lines of eventlogs.
COPY job_events (job_id, number, at, name, context) FROM STDIN

-- update_jobs
-- The last that was said of each job.
UPDATE jobs
SET
    state = input.state, queue = input.queue, urgency = input.urgency, priority = input.priority,
    result = input.result, status = input.status, started_at = input.started_at, ended_at = input.ended_at,
    detail = input.detail
FROM json_to_recordset(%(rows)s::json) AS input (
    id bigint, state text, queue text, urgency bigint, priority bigint, result text, status bigint,
    started_at double precision, ended_at double precision, detail jsonb
)
WHERE jobs.id = input.id

-- insert_submissions
-- Which jobs came with which key.
INSERT INTO submissions (key, job, seen_at)
SELECT key, id, seen_at FROM json_to_recordset(%(rows)s::json) AS input (key text, id bigint, seen_at double precision)

-- insert_allocations
-- Parts that jobs hold.
INSERT INTO allocations (job, part, start_s, end_s, data)
SELECT job, part, start_s, end_s, data
FROM json_to_recordset(%(rows)s::json) AS input (job bigint, part bigint, start_s bigint, end_s bigint, data json)

-- insert_freed_slots
-- Slots given back early; only a job that holds something can, and each slot once.
INSERT INTO freed_slots (job, slot, at)
SELECT input.job, slot, input.at
FROM json_to_recordset(%(rows)s::json) AS input (job bigint, slots bigint[], at double precision)
CROSS JOIN LATERAL unnest(input.slots) AS slot
WHERE EXISTS (SELECT FROM allocations AS held WHERE held.job = input.job)

-- delete_allocations
-- All that these jobs held is free; one row for each that held anything. What they hold next counts afresh.
WITH input AS MATERIALIZED (
    SELECT job FROM json_to_recordset(%(rows)s::json) AS input (job bigint)
), gone AS (
    DELETE FROM allocations USING input WHERE allocations.job = input.job RETURNING allocations.job
), slots AS (
    DELETE FROM freed_slots USING input WHERE freed_slots.job = input.job
)
SELECT DISTINCT job FROM gone

-- insert_intents
-- What must be done, before anybody does it.
INSERT INTO intents (id, job, kind, payload)
SELECT id, nullif(job, 0), kind, payload
FROM json_to_recordset(%(rows)s::json) AS input (id bigint, job bigint, kind text, payload json)

-- delete_intents
-- What has been done.
DELETE FROM intents USING json_to_recordset(%(rows)s::json) AS input (id bigint) WHERE intents.id = input.id

-- insert_nodes
-- Nodes with their ranks.
INSERT INTO nodes (node, rank)
SELECT node, rank FROM json_to_recordset(%(rows)s::json) AS input (node text, rank bigint)

-- delete_nodes
-- Nodes that are gone for good.
DELETE FROM nodes USING json_to_recordset(%(rows)s::json) AS input (node text) WHERE nodes.node = input.node

-- upsert_drains
-- The last drain of each node counts.
INSERT INTO drains (node, reason, by, at)
SELECT node, reason, by, at
FROM json_to_recordset(%(rows)s::json) AS input (node text, reason text, by text, at double precision)
ON CONFLICT (node) DO UPDATE SET reason = excluded.reason, by = excluded.by, at = excluded.at

-- delete_drains
-- Nodes that take work again.
DELETE FROM drains USING json_to_recordset(%(rows)s::json) AS input (node text) WHERE drains.node = input.node

-- upsert_inadmissible
-- The last word on each workload counts.
INSERT INTO inadmissible (workload, members, reason)
SELECT workload, members, reason
FROM json_to_recordset(%(rows)s::json) AS input (workload text, members text[], reason text)
ON CONFLICT (workload) DO UPDATE SET members = excluded.members, reason = excluded.reason

-- delete_inadmissible
-- Workloads that are gone, or tried again.
DELETE FROM inadmissible USING json_to_recordset(%(rows)s::json) AS input (workload text) WHERE inadmissible.workload = input.workload

-- upsert_queues
-- The last setting of each queue counts.
INSERT INTO queues (queue, enabled, started, reason_disabled, reason_stopped)
SELECT queue, enabled, started, reason_disabled, reason_stopped
FROM json_to_recordset(%(rows)s::json)
    AS input (queue text, enabled boolean, started boolean, reason_disabled text, reason_stopped text)
ON CONFLICT (queue) DO UPDATE
SET
    enabled = excluded.enabled, started = excluded.started,
    reason_disabled = excluded.reason_disabled, reason_stopped = excluded.reason_stopped

-- recorded_jobs
-- Active jobs, and the inactive ones that they wait for.
SELECT
    id, owner, name, seen_at, spec, workload, key,
    state, queue, urgency, priority, result, status, started_at, ended_at, detail
FROM jobs
WHERE id IN (SELECT id FROM jobs WHERE state <> 'INACTIVE' UNION SELECT id FROM awaited)
ORDER BY id

-- recorded_events
-- The logs of the same jobs.
SELECT job_id, at, name, context
FROM job_events
WHERE job_id IN (SELECT id FROM jobs WHERE state <> 'INACTIVE' UNION SELECT id FROM awaited)
ORDER BY job_id, number

-- recorded_allocations
-- Every part that is held, with the slots that its job gave back early.
SELECT job, part, start_s, end_s, data, coalesce(slots, '{}')
FROM allocations
LEFT JOIN (SELECT job, array_agg(slot ORDER BY slot) AS slots FROM freed_slots GROUP BY job) AS freed USING (job)
ORDER BY job, part

-- recorded_intents
-- What is not known to be done.
SELECT id, coalesce(job, 0), kind, payload FROM intents ORDER BY id

-- recorded_nodes
-- Nodes in the order of their ranks.
SELECT node, rank FROM nodes ORDER BY rank

-- recorded_drains
-- Nodes that take no work.
SELECT node, reason, by, at FROM drains ORDER BY node COLLATE "C"

-- recorded_queues
-- Queues as they were set.
SELECT queue, enabled, started, reason_disabled, reason_stopped FROM queues ORDER BY queue COLLATE "C"

-- recorded_inadmissible
-- Workloads whose members wait for somebody to act.
SELECT workload, members, reason FROM inadmissible ORDER BY workload COLLATE "C"

-- recorded_submissions
-- Keys of recent submissions.
SELECT key, array_agg(job ORDER BY job) FROM submissions
WHERE seen_at >= %(after)s
GROUP BY key
ORDER BY key COLLATE "C"

-- find_jobs
-- The history, newest first; a filter that is NULL lets everything through. Planned afresh each time, so
-- that only the filters that are set count.
SELECT
    id, owner, name, seen_at, spec, workload, key,
    state, queue, urgency, priority, result, status, started_at, ended_at, detail
FROM jobs
WHERE (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))
  AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s::text[]))
  AND (%(results)s::text[] IS NULL OR result = ANY (%(results)s::text[]))
  AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
  AND (%(name)s::text IS NULL OR name = %(name)s::text)
  AND (%(owner)s::text IS NULL OR owner = %(owner)s::text)
  AND (%(since)s::double precision IS NULL
       OR coalesce(ended_at, seen_at) > %(since)s::double precision AND ended_at IS NOT NULL)
ORDER BY id DESC
LIMIT %(limit)s

-- read_log
-- The eventlog of one job.
SELECT at, name, context FROM job_events WHERE job_id = %(job)s ORDER BY number

-- placed_jobs
-- Active jobs of which somebody has a place: a member that neither waits for one nor has left it.
SELECT id, detail
FROM jobs
WHERE state <> 'INACTIVE'
  AND detail @? '$.members[*] ? (@.phase <> "waiting" && @.phase <> "ended")'
ORDER BY id

-- forget_jobs
-- Inactive jobs that are too old or too many, oldest first; never one that is waited for, holds something or
-- has something to be done. Their logs go with them.
DELETE FROM jobs WHERE id IN (
    SELECT id
    FROM (
        (
            SELECT id, coalesce(ended_at, seen_at) AS since
            FROM jobs
            WHERE state = 'INACTIVE'
            ORDER BY coalesce(ended_at, seen_at), id
            LIMIT (SELECT greatest(count(*) - %(count)s::bigint, 0) FROM jobs WHERE state = 'INACTIVE')
        )
        UNION
        SELECT id, coalesce(ended_at, seen_at)
        FROM jobs
        WHERE state = 'INACTIVE' AND coalesce(ended_at, seen_at) < %(before)s::double precision
    ) AS old
    WHERE NOT EXISTS (SELECT FROM awaited WHERE awaited.id = old.id)
      AND NOT EXISTS (SELECT FROM allocations WHERE allocations.job = old.id)
      AND NOT EXISTS (SELECT FROM intents WHERE intents.job = old.id)
    ORDER BY since, id
    LIMIT %(most)s
)

-- forget_submissions
-- Keys that are not recent any more.
DELETE FROM submissions WHERE seen_at < %(before)s
