-- For psql, once, by a role that may make roles: the role that serves. What it
-- may do is granted by `petstore migrate up` with PETSTORE_SERVING_ROLE.
\set password `cat /run/petstore/serving/password`
CREATE ROLE petstore_serving LOGIN PASSWORD :'password';
