package main

import (
	"slices"
	"strings"

	"petstore/internal/pgtest"
)

// replicasVariable names the standbys of the program.
const replicasVariable = "PETSTORE_REPLICA_URLS="

// withReplica adds the standby of the database to the environment of the program, unless
// that names standbys. Only the engine [pgtest.Replica] has one.
func withReplica(environ []string) []string {
	if slices.ContainsFunc(environ, func(variable string) bool { return strings.HasPrefix(variable, replicasVariable) }) {
		return environ
	}
	for _, variable := range slices.Backward(environ) { // the last one counts
		if database, found := strings.CutPrefix(variable, "DATABASE_URL="); found {
			if replica := pgtest.ReplicaOf(database); replica != "" {
				return append(slices.Clone(environ), replicasVariable+replica)
			}
			break
		}
	}
	return environ
}
