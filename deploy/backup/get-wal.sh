#!/bin/sh
# The restore_command: gets a WAL segment from pgBackRest, or else from pg_receivewal, which has
# those that were not archived yet. Code 1 tells PostgreSQL that the segment does not exist, so that
# the recovery may end there. Any other failure must abort the recovery: a code above 125.
set -u
pgbackrest --stanza=petstore archive-get "$1" "$2"
case $? in
0) exit 0 ;;
1) ;; # not in the repository
*) exit 255 ;;
esac
for file in "/var/lib/pgreceivewal/$1" "/var/lib/pgreceivewal/$1.partial"; do
	if [ -f "$file" ]; then cp "$file" "$2" && exit 0 || exit 255; fi
done
# A folder that is missing, of another user, or copied into itself is a failure too.
set -- /var/lib/pgreceivewal/0*
if [ ! -f "$1" ]; then
	echo "/var/lib/pgreceivewal has no WAL, or $(id -un) may not read it" >&2
	exit 255
fi
exit 1
