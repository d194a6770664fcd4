-- Creates the serving role. Run it once with psql, as a role that may create roles.
-- `petstore migrate up` with PETSTORE_SERVING_ROLE grants its privileges.
\set password `cat /run/petstore/serving/password`
CREATE ROLE petstore_serving LOGIN PASSWORD :'password';
