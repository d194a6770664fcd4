# Creates a password for each role of the compose file's database, unless it exists:
# 244 random bits from the kernel. PostgreSQL reads "password", and petstore reads
# "pgpass" (https://www.postgresql.org/docs/current/libpq-pgpass.html). The script needs
# only a shell.
set -eu
umask 022 # the containers that have a volume read it as different users

make_password() {
	dir=/run/petstore/$1 role=$2
	[ ! -s "$dir/password" ] || return 0
	read -r first </proc/sys/kernel/random/uuid
	read -r second </proc/sys/kernel/random/uuid
	echo "*:*:*:$role:$first$second" >"$dir/pgpass"
	echo "$first$second" >"$dir/password"
}

make_password owner petstore
make_password serving petstore_serving
# Only deploy/replica/compose.yml mounts this folder.
[ ! -d /run/petstore/replication ] || make_password replication petstore_replication
