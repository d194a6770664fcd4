#!/bin/sh
# Copies the database of OWNER_URL into the empty one of NEW_URL, and lets it follow by logical
# replication. Both URLs are of superusers:
#
#   createdb --owner=petstore_owner petstore   # on the new server, with the roles of the old one
#   OWNER_URL=postgres://postgres@db1/petstore NEW_URL=postgres://postgres@db2/petstore ./replicate.sh
#
# The new server itself connects to OWNER_URL, with the ~/.pgpass of its system user. Nobody creates
# partitions of events there, so run cutover.sh within four weeks.
#
# To give up, or before you run it again: drop the database of NEW_URL after DROP SUBSCRIPTION
# petstore in it, and DROP PUBLICATION petstore in the one of OWNER_URL. A subscription that is only
# forgotten makes the old server keep its WAL until the disk is full.
set -eu
export PGOPTIONS='-c client_min_messages=warning'
old() { psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 "$@" "${OWNER_URL:?}"; }
new() { psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 "$@" "${NEW_URL:?}"; }
if [ "$(old --command='SHOW wal_level')" != logical ]; then
	echo "the old server needs wal_level = logical, and a restart" >&2
	exit 1
fi
# A table without a primary key would refuse updates while it is published.
without=$(old --command="SELECT string_agg(relname, ', ') FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = pg_class.oid AND indisprimary)")
if [ -n "$without" ]; then
	echo "these tables have no primary key: $without" >&2
	exit 1
fi
schema=$(mktemp)
trap 'rm -f "$schema"' EXIT
pg_dump --schema-only --file="$schema" "$OWNER_URL"
cat >>"$schema" <<'SQL'
-- maintain_events() creates the partitions of events as their owner.
DO $$
DECLARE
    owner text;
BEGIN
    SELECT pg_get_userbyid(relowner)
    INTO owner
    FROM pg_class
    WHERE oid = 'public.events'::regclass
      AND NOT has_schema_privilege(relowner, relnamespace, 'CREATE');
    IF FOUND THEN
        RAISE '% owns the tables, but may not create more in the new database', owner
            USING HINT = format('Run ALTER DATABASE %I OWNER TO %I on the new server, and then this script again.', current_database(), owner);
    END IF;
END
$$;
SQL
new --single-transaction --file="$schema" >/dev/null
# The partitions of events may differ, so the rows go through their parent.
old --command='CREATE PUBLICATION petstore FOR ALL TABLES WITH (publish_via_partition_root)'
new --command="CREATE SUBSCRIPTION petstore CONNECTION '$OWNER_URL' PUBLICATION petstore"
until [ "$(new --command="SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'")" = 0 ]; do sleep 0.2; done
new --command=ANALYZE
