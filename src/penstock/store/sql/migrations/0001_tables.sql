-- Runs before the code that needs it: the database is empty.
--
-- Everything that an instance remembers. Rows that only pass through (`json`) are kept byte by byte; `jsonb`
-- is for what is looked into. `job_events` only grows: a line is never changed, and goes only with its job.

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

-- Inactive jobs that an active one names in `depends_on`: a restart needs them, so they are not forgotten.
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
    job bigint REFERENCES jobs (id), -- none: about what is left over of a job that may be forgotten
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

-- Outlives its jobs: the same key is the same submission for some days, whatever was forgotten.
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

-- A cascade arrives from within a trigger of `jobs`; a statement that somebody types does not.
CREATE FUNCTION refuse_unless_cascade() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() < 2 THEN
        RAISE EXCEPTION 'DELETE of % is refused: its lines go with their job', TG_TABLE_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;

-- Numbers of a job's lines have no gap: the lowest that is added follows the highest that is there.
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
