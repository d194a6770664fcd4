//go:build !linux

package main

import "errors"

var errNeedsLinux = errors.New("needs Linux")

func discardPackets(int) error { return errNeedsLinux }

func isClosed(int) (bool, error) { return false, errNeedsLinux }
