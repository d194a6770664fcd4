//go:build !linux

package main

import "errors"

func isClosed(int) (bool, error) { return false, errors.New("needs Linux") }
