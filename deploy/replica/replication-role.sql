-- Creates the role with which a replica copies and follows the primary. Run it once with
-- psql on the primary's machine, as a superuser.
\set password `cat /run/petstore/replication/password`
CREATE ROLE petstore_replication REPLICATION LOGIN PASSWORD :'password';
\! echo 'host replication petstore_replication all scram-sha-256' >>"$PGDATA/pg_hba.conf"
SELECT pg_reload_conf();

-- The server compares the timelines of the primary and of the replica.
GRANT pg_read_all_stats TO petstore_serving;
