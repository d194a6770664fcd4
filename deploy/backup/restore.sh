#!/bin/sh
# Restores a dump into the empty database of OWNER_URL, for serve as PETSTORE_SERVING_ROLE. More
# arguments, such as --nothing-lost, are for petstore after-restore:
#
#   createdb --owner=petstore_owner petstore
#   OWNER_URL=postgres://petstore_owner@db2/petstore ./restore.sh petstore.dump
set -eu
file=${1:?name the dump}
shift
unset PETSTORE_DIRECT_URL # petstore would prefer it to DATABASE_URL
export DATABASE_URL="${OWNER_URL:?set it to the URL of the owner}"
todo='Drop the database, create it again, and repeat.'
trap '[ $? = 0 ] || echo "The restore is not complete. $todo" >&2' EXIT
restore() { pg_restore --exit-on-error --no-owner --no-privileges --dbname="$OWNER_URL" "$@" "$file"; }
# The versions of the schema come last, so no program uses a database that has only a part of the dump.
pg_restore --list "$file" | grep -v ' TABLE DATA public goose_db_version ' | restore --jobs=4 --use-list=/dev/stdin
PGOPTIONS='-c client_min_messages=error' psql --quiet --command=ANALYZE "$OWNER_URL" # the owner may not analyze all catalogs
restore --data-only --table=goose_db_version
todo="But all rows are there. As the owner, run petstore migrate up, and then petstore after-restore $*"
if [ -z "${PETSTORE_SERVING_ROLE-}" ]; then echo "PETSTORE_SERVING_ROLE is empty, so no other role than the owner can run serve" >&2; fi
petstore migrate up # grants the serving role its privileges
petstore after-restore "$@"
