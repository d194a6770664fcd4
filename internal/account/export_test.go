package account

// SweepOnce sweeps every ended account for a turn.
var SweepOnce = sweepOnce
