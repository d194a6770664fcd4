#!/bin/sh
# Dumps the database of OWNER_URL into a file that only you can read, because it has secrets:
#
#   OWNER_URL=postgres://petstore_owner@db1/petstore ./dump.sh petstore.dump
set -eu
umask 077
file=${1:?name the file to write}
trap 'rm -f "$file.part"' EXIT # of a dump that fails
# Petstore has no large objects (-B), and one of another role would make pg_dump fail.
pg_dump --format=custom -B --file="$file.part" "${OWNER_URL:?set it to the URL of the owner}"
mv "$file.part" "$file" # so that a dump under its name is complete
