-- Runs before the code that needs it: the database is empty.
--
-- The whole durable state of an instance. Documents that no query inspects have the type `json`, which keeps
-- them byte by byte; documents that queries inspect are `jsonb`. `job_events` is append-only: a row is never
-- changed, and is deleted only together with its job.

CREATE TABLE instance (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    schema_version integer NOT NULL,
    began_at double precision,
    epoch bigint NOT NULL DEFAULT 0,
    highest_job bigint NOT NULL DEFAULT 0,
    highest_intent bigint NOT NULL DEFAULT 0,
    highest_rank bigint NOT NULL DEFAULT -1
);
INSERT INTO instance (schema_version) VALUES (1);

CREATE TABLE jobs (
    id bigint PRIMARY KEY,
    owner text NOT NULL,
    name text NOT NULL,
    seen_at double precision NOT NULL,
    spec jsonb NOT NULL,
    work text NOT NULL,
    key text NOT NULL,
    state text NOT NULL,
    queue text NOT NULL,
    urgency bigint NOT NULL,
    priority bigint NOT NULL,
    result text NOT NULL,
    status bigint,
    started_at double precision,
    ended_at double precision,
    detail jsonb NOT NULL
);
CREATE INDEX jobs_active ON jobs (id) WHERE state <> 'INACTIVE';
CREATE INDEX jobs_by_state ON jobs (state, id);
CREATE INDEX jobs_by_result ON jobs (result, id) WHERE result <> '';
CREATE INDEX jobs_by_queue ON jobs (queue, id);
CREATE INDEX jobs_by_name ON jobs (name, id);
CREATE INDEX jobs_by_owner ON jobs (owner, id);
CREATE INDEX jobs_by_end ON jobs (coalesce(ended_at, seen_at), id);

-- Jobs that an active job names in `depends_on`. A restart needs them, so pruning keeps them.
CREATE VIEW awaited AS
SELECT DISTINCT
    CASE
        WHEN jsonb_typeof(d.value) = 'number' AND d.value::numeric BETWEEN 0 AND 9223372036854775807
        THEN trunc(d.value::numeric)::bigint
    END AS id
FROM jobs
CROSS JOIN LATERAL jsonb_array_elements(
    CASE WHEN jsonb_typeof(spec -> 'depends_on') = 'array' THEN spec -> 'depends_on' ELSE '[]'::jsonb END
) AS d (value)
WHERE state <> 'INACTIVE';

CREATE TABLE job_events (
    job_id bigint NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number bigint NOT NULL CHECK (number >= 0),
    at double precision NOT NULL,
    name text NOT NULL,
    context json NOT NULL,
    PRIMARY KEY (job_id, number)
);

CREATE TABLE allocations (
    job bigint NOT NULL REFERENCES jobs (id),
    part bigint NOT NULL,
    start_s bigint NOT NULL,
    end_s bigint,
    data json NOT NULL,
    PRIMARY KEY (job, part)
);

CREATE TABLE freed_slots (
    job bigint NOT NULL REFERENCES jobs (id),
    slot bigint NOT NULL,
    at double precision NOT NULL,
    PRIMARY KEY (job, slot)
);

CREATE TABLE intents (
    id bigint PRIMARY KEY,
    job bigint REFERENCES jobs (id), -- NULL: concerns an orphan of a job that may be pruned already
    kind text NOT NULL,
    payload json NOT NULL
);
CREATE INDEX intents_by_job ON intents (job);

CREATE TABLE nodes (
    node text PRIMARY KEY,
    rank bigint NOT NULL UNIQUE
);

CREATE TABLE drains (
    node text PRIMARY KEY,
    reason text NOT NULL,
    by text NOT NULL,
    at double precision NOT NULL
);

CREATE TABLE queues (
    queue text PRIMARY KEY,
    enabled boolean NOT NULL,
    started boolean NOT NULL,
    reason_disabled text NOT NULL,
    reason_stopped text NOT NULL
);

-- Outlives its jobs: a submission key stays known for some days, even after its jobs were pruned.
CREATE TABLE submissions (
    key text NOT NULL,
    job bigint NOT NULL,
    seen_at double precision NOT NULL,
    PRIMARY KEY (key, job)
);
CREATE INDEX submissions_by_age ON submissions (seen_at);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: what was recorded is not changed', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation';
END $$;

-- A cascade runs inside a trigger of `jobs` (depth 2 or more); a DELETE typed by hand does not.
CREATE FUNCTION refuse_unless_cascade() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() < 2 THEN
        RAISE EXCEPTION 'DELETE of % is refused: its lines go with their job', TG_TABLE_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;

-- Event numbers of a job have no gap: the lowest inserted number follows the highest existing one.
CREATE FUNCTION refuse_gaps() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    wrong bigint;
BEGIN
    SELECT a.job_id INTO wrong
    FROM (
        SELECT job_id, min(number) AS low, max(number) - min(number) + 1 - count(*) AS missing
        FROM added
        GROUP BY job_id
    ) AS a
    WHERE a.missing <> 0
       OR a.low > 0 AND NOT EXISTS (
           SELECT FROM job_events AS e WHERE e.job_id = a.job_id AND e.number = a.low - 1
       )
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a line is missing in the log of job %', wrong
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER job_events_never_change BEFORE UPDATE OR TRUNCATE ON job_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER job_events_go_with_their_job BEFORE DELETE ON job_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_unless_cascade();
CREATE TRIGGER job_events_have_no_gaps AFTER INSERT ON job_events
    REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_gaps();
CREATE TRIGGER jobs_stay_while_active BEFORE DELETE ON jobs
    FOR EACH ROW WHEN (old.state <> 'INACTIVE') EXECUTE FUNCTION refuse_change();
