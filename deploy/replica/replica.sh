# Runs a streaming standby of the primary of the compose file. The first start copies the
# primary. It needs a shell, cat, rm, mv and the programs of PostgreSQL.
set -eu

PGPASSWORD=$(cat /run/petstore/replication/password)
export PGPASSWORD # pg_basebackup and the WAL receiver read it
primary='host=postgres user=petstore_replication application_name=replica'

# An unfinished copy has another name, so an interrupted start begins again.
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	rm -rf "$PGDATA.new"
	pg_basebackup --dbname="$primary" --pgdata="$PGDATA.new" --checkpoint=fast
	: >"$PGDATA.new/standby.signal" # a promotion removes it
	mv "$PGDATA.new" "$PGDATA"
fi

# With the feedback, the primary keeps the row versions that a query on the replica needs.
exec postgres -c listen_addresses='*' -c "primary_conninfo=$primary" -c hot_standby_feedback=on
