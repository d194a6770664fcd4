package localpg

import "syscall"

func signalOnDeath(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }
