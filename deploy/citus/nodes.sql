-- Runs once on the coordinator. It adds the workers, and creates the serving role on all
-- nodes.
SELECT citus_set_coordinator_host('coordinator', 5432);
SELECT citus_add_node('worker1', 5432);
SELECT citus_add_node('worker2', 5432);

-- Workers see the settings of the role, but not the settings of a session.
CREATE ROLE petstore_serving LOGIN;
ALTER ROLE petstore_serving SET default_transaction_isolation = 'read committed';
ALTER ROLE petstore_serving SET enable_seqscan = 'off';
ALTER ROLE petstore_serving SET idle_in_transaction_session_timeout = '10s';
ALTER ROLE petstore_serving SET jit = 'off';
ALTER ROLE petstore_serving SET lock_timeout = '2s';
ALTER ROLE petstore_serving SET statement_timeout = '5s';
