#!/bin/sh
# Ends what replicate.sh has begun, after you have stopped every process of Petstore. Then start
# them on NEW_URL. If it fails, run it again.
set -eu
unset PETSTORE_DIRECT_URL # petstore would prefer it to DATABASE_URL
export PGOPTIONS='-c client_min_messages=warning'
old() { psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 "$@" "${OWNER_URL:?}"; }
new() { psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 "$@" "${NEW_URL:?}"; }
connected=$(old --command="SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND application_name LIKE 'petstore%'")
if [ "$connected" != 0 ]; then
	echo "Petstore has $connected connections to the old server; stop every process and restart PgBouncer if you have it, then run this again" >&2
	exit 1
fi
# Logical replication does not copy sequences.
sequences=$(old --command="SELECT format('SELECT setval(%1\$L, greatest(%2\$s, (SELECT last_value FROM %1\$s)));', format('%I.%I', schemaname, sequencename), last_value) FROM pg_sequences WHERE last_value IS NOT NULL")
new --command="$sequences" >/dev/null
if [ "$(new --command="SELECT count(*) FROM pg_subscription WHERE subname = 'petstore' AND subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())")" != 0 ]; then
	# Some commits do not wait for the disk, such as those of the record of a sandbox, and only WAL on
	# disk is sent. The commit of this message waits, and so flushes everything before it.
	old --command='SET synchronous_commit = local' --command="SELECT pg_logical_emit_message(true, 'petstore', '')" >/dev/null
	end=$(old --command='SELECT pg_current_wal_flush_lsn()')
	until reached=$(old --command="SELECT confirmed_flush_lsn >= '$end' FROM pg_replication_slots WHERE slot_name = 'petstore'") && [ "$reached" = t ]; do
		if [ -z "$reached" ]; then
			echo "the old server does not respond, or has no slot petstore" >&2
			exit 1
		fi
		sleep 0.1
	done
	new --command='DROP SUBSCRIPTION petstore'
fi
old --command='DROP PUBLICATION IF EXISTS petstore'
new --command='SELECT maintain_events()' >/dev/null
DATABASE_URL=$NEW_URL petstore migrate up # grants the serving role its privileges
DATABASE_URL=$NEW_URL petstore after-restore --nothing-lost
