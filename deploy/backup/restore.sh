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
trap '[ $? = 0 ] || echo "The restore is not complete. Drop the database, create it again, and repeat." >&2' EXIT
pg_restore --exit-on-error --no-owner --no-privileges --jobs=4 --dbname="$OWNER_URL" "$file"
PGOPTIONS='-c client_min_messages=error' psql --quiet --command=ANALYZE "$OWNER_URL" # the owner may not analyze all catalogs
if [ -z "${PETSTORE_SERVING_ROLE-}" ]; then echo "PETSTORE_SERVING_ROLE is empty, so no other role than the owner can run serve" >&2; fi
petstore migrate up # grants the serving role its privileges
petstore after-restore "$@"
