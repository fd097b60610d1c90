-- prepare_session
-- A commit is durable when it returns, independent of the server's default. If a process is suspended inside a
-- transaction, the server aborts that transaction, so that the epoch row does not stay locked.
SELECT
    set_config('synchronous_commit', 'on', false),
    set_config('idle_in_transaction_session_timeout', '30s', false),
    set_config('application_name', 'penstock', false)

-- schema_exists
-- Whether any migration has run in this database. Reads the catalogue, because `to_regclass` may answer from a
-- snapshot that is older than the advisory lock this session waited for.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relname = 'instance' AND c.relkind = 'r' AND n.nspname = current_schema()
)

-- schema_version
-- Number of the last migration that ran.
SELECT schema_version FROM instance

-- lock_schema
-- Serializes migrations; the transaction's end releases the lock. The key is arbitrary and fixed.
SELECT pg_advisory_xact_lock(8097873591115181931)

-- set_schema_version
-- Records that a migration has run.
UPDATE instance SET schema_version = %(version)s

-- lock_epoch
-- The fence: the transaction that locks this row is the only writer.
SELECT epoch FROM instance FOR UPDATE

-- read_epoch
-- Checks the fence without a lock, for a transaction that writes nothing: a row lock would cost a disk flush.
SELECT epoch FROM instance

-- claim_cluster
-- Ties the recorded state to a cluster unless it is tied to one; returns the cluster it is tied to.
UPDATE instance SET cluster = CASE cluster WHEN '' THEN %(cluster)s ELSE cluster END
RETURNING cluster

-- begin_epoch
-- Fences off every older epoch. The first epoch also sets the time that job ids count from.
UPDATE instance SET epoch = epoch + 1, began_at = coalesce(began_at, %(now)s)
RETURNING epoch, began_at, highest_job, highest_intent, highest_rank

-- raise_highest
-- Ids are never reused, so the highest values never decrease.
UPDATE instance
SET
    highest_job = greatest(highest_job, %(job)s),
    highest_intent = greatest(highest_intent, %(intent)s),
    highest_rank = greatest(highest_rank, %(rank)s)

-- copy_jobs
-- New jobs, each with the latest state in the batch.
COPY jobs (
    id, owner, name, seen_at, spec, workload, key,
    state, queue, urgency, priority, result, status, started_at, ended_at, record
) FROM STDIN

-- copy_events
-- Appends to eventlogs.
COPY job_events (job_id, number, at, name, context) FROM STDIN

-- update_jobs
-- Latest state of each job.
UPDATE jobs
SET
    state = input.state, queue = input.queue, urgency = input.urgency, priority = input.priority,
    result = input.result, status = input.status, started_at = input.started_at, ended_at = input.ended_at,
    record = input.record
FROM json_to_recordset(%(rows)s::json) AS input (
    id bigint, state text, queue text, urgency bigint, priority bigint, result text, status bigint,
    started_at double precision, ended_at double precision, record jsonb
)
WHERE jobs.id = input.id

-- insert_submissions
-- Maps submission keys to jobs.
INSERT INTO submissions (key, job, seen_at)
SELECT key, id, seen_at FROM json_to_recordset(%(rows)s::json) AS input (key text, id bigint, seen_at double precision)

-- insert_allocations
-- Allocated parts: the first match of a job, or an extension.
INSERT INTO allocations (job, part, start_s, end_s, data)
SELECT job, part, start_s, end_s, data
FROM json_to_recordset(%(rows)s::json) AS input (job bigint, part bigint, start_s bigint, end_s bigint, data json)

-- insert_slots
-- Slots of allocated parts.
INSERT INTO allocation_slots (job, slot, part, data)
SELECT job, slot, part, data
FROM json_to_recordset(%(rows)s::json) AS input (job bigint, slot bigint, part bigint, data json)

-- update_slots
-- Slots that have lost some of their grants, or bring other keys.
UPDATE allocation_slots SET data = input.data
FROM json_to_recordset(%(rows)s::json) AS input (job bigint, slot bigint, data json)
WHERE allocation_slots.job = input.job AND allocation_slots.slot = input.slot

-- delete_slots
-- Slots released before the rest of the allocation.
DELETE FROM allocation_slots
USING json_to_recordset(%(rows)s::json) AS input (job bigint, slot bigint)
WHERE allocation_slots.job = input.job AND allocation_slots.slot = input.slot

-- delete_parts
-- Parts that end with the release of their slots. A part that still has a slot is not deleted.
DELETE FROM allocations
USING json_to_recordset(%(rows)s::json) AS input (job bigint, part bigint)
WHERE allocations.job = input.job AND allocations.part = input.part
  AND NOT EXISTS (SELECT FROM allocation_slots AS s WHERE s.job = input.job AND s.part = input.part)

-- delete_allocations
-- Frees all parts and slots of these jobs; returns the jobs that had an allocation.
WITH input AS MATERIALIZED (
    SELECT job FROM json_to_recordset(%(rows)s::json) AS input (job bigint)
), gone AS (
    DELETE FROM allocations USING input WHERE allocations.job = input.job RETURNING allocations.job
), slots AS (
    DELETE FROM allocation_slots USING input WHERE allocation_slots.job = input.job
)
SELECT DISTINCT job FROM gone

-- upsert_members
-- Members; a later entry replaces an earlier one.
INSERT INTO members (job, key, number, index, phase, node, slot, data)
SELECT job, key, number, index, phase, node, slot, data
FROM json_to_recordset(%(rows)s::json) AS input (
    job bigint, key text, number bigint, index bigint, phase text, node text, slot bigint, data jsonb
)
ON CONFLICT (job, key) DO UPDATE
SET
    number = excluded.number, index = excluded.index, phase = excluded.phase, node = excluded.node,
    slot = excluded.slot, data = excluded.data

-- delete_members
-- Members that their jobs have dropped.
DELETE FROM members
USING json_to_recordset(%(rows)s::json) AS input (job bigint, key text)
WHERE members.job = input.job AND members.key = input.key

-- upsert_job_nodes
-- Units of jobs by node; a later entry replaces an earlier one.
INSERT INTO job_nodes (job, node, resources)
SELECT job, node, resources
FROM json_to_recordset(%(rows)s::json) AS input (job bigint, node text, resources jsonb)
ON CONFLICT (job, node) DO UPDATE SET resources = excluded.resources

-- delete_job_nodes
-- Nodes that jobs do not count any more.
DELETE FROM job_nodes
USING json_to_recordset(%(rows)s::json) AS input (job bigint, node text)
WHERE job_nodes.job = input.job AND job_nodes.node = input.node

-- insert_intents
-- Records intents before a backend executes them.
INSERT INTO intents (id, job, kind, payload)
SELECT id, nullif(job, 0), kind, payload
FROM json_to_recordset(%(rows)s::json) AS input (id bigint, job bigint, kind text, payload json)

-- delete_intents
-- Removes completed intents.
DELETE FROM intents USING json_to_recordset(%(rows)s::json) AS input (id bigint) WHERE intents.id = input.id

-- insert_nodes
-- Registers nodes with their ranks.
INSERT INTO nodes (node, rank)
SELECT node, rank FROM json_to_recordset(%(rows)s::json) AS input (node text, rank bigint)

-- delete_nodes
-- Removes nodes that left the cluster for good.
DELETE FROM nodes USING json_to_recordset(%(rows)s::json) AS input (node text) WHERE nodes.node = input.node

-- upsert_drains
-- Drains nodes; a later drain of the same node replaces its reason.
INSERT INTO drains (node, reason, by, at)
SELECT node, reason, by, at
FROM json_to_recordset(%(rows)s::json) AS input (node text, reason text, by text, at double precision)
ON CONFLICT (node) DO UPDATE SET reason = excluded.reason, by = excluded.by, at = excluded.at

-- delete_drains
-- Undrains nodes.
DELETE FROM drains USING json_to_recordset(%(rows)s::json) AS input (node text) WHERE drains.node = input.node

-- upsert_inadmissible
-- Marks workloads as inadmissible; a later entry replaces an earlier one.
INSERT INTO inadmissible (workload, members, reason)
SELECT workload, members, reason
FROM json_to_recordset(%(rows)s::json) AS input (workload text, members text[], reason text)
ON CONFLICT (workload) DO UPDATE SET members = excluded.members, reason = excluded.reason

-- delete_inadmissible
-- Removes workloads that are gone or are tried again.
DELETE FROM inadmissible USING json_to_recordset(%(rows)s::json) AS input (workload text)
WHERE inadmissible.workload = input.workload

-- upsert_claims
-- Sets the nodes that pending jobs claim; a later set replaces an earlier one.
INSERT INTO claims (job, nodes, made_at)
SELECT job, nodes, made_at
FROM json_to_recordset(%(rows)s::json) AS input (job bigint, nodes text[], made_at double precision)
ON CONFLICT (job) DO UPDATE SET nodes = excluded.nodes, made_at = excluded.made_at

-- delete_claims
-- Ends claims.
DELETE FROM claims USING json_to_recordset(%(rows)s::json) AS input (job bigint) WHERE claims.job = input.job

-- upsert_queues
-- Settings of queues; a later entry replaces an earlier one.
INSERT INTO queues (queue, enabled, started, reason_disabled, reason_stopped)
SELECT queue, enabled, started, reason_disabled, reason_stopped
FROM json_to_recordset(%(rows)s::json)
    AS input (queue text, enabled boolean, started boolean, reason_disabled text, reason_stopped text)
ON CONFLICT (queue) DO UPDATE
SET
    enabled = excluded.enabled, started = excluded.started,
    reason_disabled = excluded.reason_disabled, reason_stopped = excluded.reason_stopped

-- recorded_jobs
-- Active jobs, and the inactive jobs that they depend on.
SELECT
    id, owner, name, seen_at, spec, workload, key,
    state, queue, urgency, priority, result, status, started_at, ended_at, record
FROM jobs
WHERE id IN (SELECT id FROM jobs WHERE state <> 'INACTIVE' UNION SELECT id FROM dependency_targets)
ORDER BY id

-- recorded_events
-- Eventlogs of the jobs that `recorded_jobs` returns.
SELECT job_id, at, name, context
FROM job_events
WHERE job_id IN (SELECT id FROM jobs WHERE state <> 'INACTIVE' UNION SELECT id FROM dependency_targets)
ORDER BY job_id, number

-- recorded_members
-- Members of active jobs, in the order of their appearance.
SELECT job, key, number, index, phase, node, slot, data
FROM members
WHERE job IN (SELECT id FROM jobs WHERE state <> 'INACTIVE')
ORDER BY job, number, key COLLATE "C"

-- recorded_job_nodes
-- Units of active jobs by node.
SELECT job, node, resources
FROM job_nodes
WHERE job IN (SELECT id FROM jobs WHERE state <> 'INACTIVE')
ORDER BY job, node COLLATE "C"

-- recorded_allocations
-- Every allocated part.
SELECT job, part, start_s, end_s, data FROM allocations ORDER BY job, part

-- recorded_slots
-- Every slot that is not released.
SELECT job, part, slot, data FROM allocation_slots ORDER BY job, slot

-- recorded_intents
-- Intents that are not known to be completed.
SELECT id, coalesce(job, 0), kind, payload FROM intents ORDER BY id

-- recorded_nodes
-- Nodes by rank.
SELECT node, rank FROM nodes ORDER BY rank

-- recorded_drains
-- Drained nodes.
SELECT node, reason, by, at FROM drains ORDER BY node COLLATE "C"

-- recorded_queues
-- Settings of queues.
SELECT queue, enabled, started, reason_disabled, reason_stopped FROM queues ORDER BY queue COLLATE "C"

-- recorded_inadmissible
-- Inadmissible workloads: members that existed at that time wait until a new member appears.
SELECT workload, members, reason FROM inadmissible ORDER BY workload COLLATE "C"

-- recorded_claims
-- The nodes that pending jobs claim.
SELECT job, nodes, made_at FROM claims ORDER BY job

-- recorded_submissions
-- Submission keys that have not expired.
SELECT key, array_agg(job ORDER BY job) FROM submissions
WHERE seen_at >= %(after)s
GROUP BY key
ORDER BY key COLLATE "C"

-- find_jobs
-- Job history, newest first, with the sizes of each job; a filter that is NULL matches every job. Not prepared, so
-- that the planner sees which filters are set.
SELECT
    found.*,
    -- Members that were replaced or deleted are not counted, as in `member_count`.
    (
        SELECT count(*) FROM members
        WHERE members.job = found.id AND coalesce(data ->> 'cause', '') <> 'gone'
            AND key NOT IN (
                SELECT other.data ->> 'replaces' FROM members AS other
                WHERE other.job = found.id AND coalesce(other.data ->> 'cause', '') <> 'gone'
                    AND other.data ->> 'replaces' <> other.key
            )
    ),
    ARRAY(SELECT DISTINCT node FROM members WHERE members.job = found.id AND node <> ''),
    (SELECT coalesce(jsonb_object_agg(node, resources), '{}') FROM job_nodes WHERE job_nodes.job = found.id)
FROM (
    SELECT
        id, owner, name, seen_at, spec, workload, key,
        state, queue, urgency, priority, result, status, started_at, ended_at, record
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
) AS found
ORDER BY found.id DESC

-- read_members
-- The members of one job, in the order of their appearance.
SELECT key, number, index, phase, node, slot, data
FROM members
WHERE job = %(job)s
ORDER BY number, key COLLATE "C"

-- read_log
-- The eventlog of one job.
SELECT at, name, context FROM job_events WHERE job_id = %(job)s ORDER BY number

-- placed_jobs
-- Active jobs with at least one member that is assigned to a node: neither waiting nor ended. A cast of a value of
-- another type would fail for all jobs.
SELECT
    id,
    CASE jsonb_typeof(record -> 'placed_at') WHEN 'number' THEN (record -> 'placed_at')::double precision END,
    CASE jsonb_typeof(record -> 'incomplete_since')
        WHEN 'number' THEN (record -> 'incomplete_since')::double precision
    END,
    coalesce(record ->> 'incomplete_reason', ''), record ? 'exception',
    array_agg(member.key ORDER BY number, member.key COLLATE "C"),
    array_agg(node ORDER BY number, member.key COLLATE "C"),
    array_agg(phase ORDER BY number, member.key COLLATE "C"),
    array_agg(
        CASE jsonb_typeof(data -> 'seen_at') WHEN 'number' THEN (data -> 'seen_at')::double precision ELSE 0 END
        ORDER BY number, member.key COLLATE "C"
    )
FROM jobs
JOIN members AS member ON member.job = id AND phase <> 'ended'
WHERE state <> 'INACTIVE'
GROUP BY id
HAVING bool_or(phase <> 'waiting')
ORDER BY id

-- prune_jobs
-- Deletes inactive jobs beyond the retention, oldest first, with their eventlogs. Keeps jobs that an active job
-- depends on, that have an allocation, or that have an open intent.
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
    WHERE NOT EXISTS (SELECT FROM dependency_targets WHERE dependency_targets.id = old.id)
      AND NOT EXISTS (SELECT FROM allocations WHERE allocations.job = old.id)
      AND NOT EXISTS (SELECT FROM intents WHERE intents.job = old.id)
    ORDER BY since, id
    LIMIT %(jobs_max)s
)
RETURNING id

-- prune_submissions
-- Deletes expired submission keys.
DELETE FROM submissions WHERE seen_at < %(before)s
