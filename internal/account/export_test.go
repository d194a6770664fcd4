package account

// SweepOnce is one pass of the sweep.
var SweepOnce = sweepOnce
