-- Creates the serving role. Run it once with psql, as a role that may create roles.
-- `petstore migrate up` with PETSTORE_SERVING_ROLE grants its privileges.
\set password `cat /run/petstore/serving/password`
CREATE ROLE petstore_serving LOGIN PASSWORD :'password';

-- The settings of its sessions. Petstore sets them itself, but not behind a connection
-- pooler and not on the workers of Citus.
ALTER ROLE petstore_serving SET default_transaction_isolation = 'read committed';
ALTER ROLE petstore_serving SET enable_seqscan = 'off';
ALTER ROLE petstore_serving SET idle_in_transaction_session_timeout = '10s';
ALTER ROLE petstore_serving SET jit = 'off';
ALTER ROLE petstore_serving SET lock_timeout = '2s';
ALTER ROLE petstore_serving SET statement_timeout = '5s';
