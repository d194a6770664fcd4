package main

import (
	"context"
	"fmt"
)

// side is one of the two sides of a workload.
type side struct {
	name    string
	measure func(context.Context, *generator) (measurement, error)
}

// workload is a comparison of Petstore with another side. The targets are limits of the ratio
// Petstore/other; 0 means no target.
type workload struct {
	name        string
	ours, other side
	atLeast     float64 // requests per second
	p99AtMost   float64
	latencyOnly bool // whether requests per second mean nothing
	chart       bool // whether the chart shows the workload
}

// The workloads whose figures are in README.md.
const (
	readPets     = "GET /pets/{petId}"
	randomOrders = "POST /store/orders, random pets"
	flashSale    = "POST /store/orders, one pet (flash sale)"
)

// The names of sides that README.md compares with.
const plainName, swaggerName = "plain", "swagger-petstore"

// workloads returns the rows of the table.
func (s *comparedServers) workloads() []workload {
	const many, few = 64, 16
	pet, order := load{kind: "pet", connections: many}, load{kind: "order", connections: many}
	keyed, sale, create := load{kind: "keyed", connections: many}, load{kind: "sale", connections: many}, load{kind: "create", connections: many}
	fewPets := load{kind: "pet", connections: few}
	page := func(path string) load { return load{kind: "path", path: path, connections: many} }
	all := []workload{
		{name: randomOrders, ours: s.ours(order), other: s.onPlain(order), atLeast: 2.5, p99AtMost: 0.6, chart: true},
		{name: randomOrders, ours: s.ours(order), other: s.onPgbench(many), atLeast: 1.3},
		{name: "POST /store/orders, an Idempotency-Key each", ours: s.ours(keyed), other: s.on("without keys", order), atLeast: 0.8},
		{name: flashSale, ours: s.ours(sale), other: s.onPlain(sale), atLeast: 8, chart: true},
		{name: "POST /pets", ours: s.ours(create), other: s.onPlain(create), atLeast: 2.4, chart: true},
		{name: readPets, ours: s.ours(pet), other: s.onPlain(pet), atLeast: 1.4, p99AtMost: 1, chart: true},
		{name: readPets + ", 16 connections", ours: s.ours(fewPets), other: s.onPlain(fewPets), atLeast: 1.1},
		{name: readPets, ours: s.ours(pet), other: s.onConstant(pet), atLeast: 0.45},
		{name: "GET /pets?limit=50, different pages", ours: s.ours(page("@" + s.pages)), other: s.onPlain(page("@" + s.plainPages)), atLeast: 1.2, chart: true},
		{name: "GET /pets?limit=50, one page", ours: s.ours(page("/pets?limit=50")), other: s.onPlain(page("/pets?limit=50"))},
		{name: "GET /pets, page 2,000 by name", ours: s.ours(page(s.deepPath)), other: s.on("first page", page(firstPath)), atLeast: 0.9},
		{name: readPets + ", 1,000 accounts", ours: s.ours(pet.ofManyAccounts()), other: s.onPlain(pet), atLeast: 1},
		{name: "POST /store/orders, 1,000 accounts", ours: s.ours(order.ofManyAccounts()), other: s.onPlain(order), atLeast: 1.2},
	}
	if s.swagger != "" {
		all = append(all,
			workload{name: readPets, ours: s.ours(pet), other: s.onSwagger("swaggerPet", many)},
			workload{name: randomOrders, ours: s.ours(order), other: s.onSwagger("swaggerOrder", many)})
	}
	alone := load{kind: "pet", connections: 1}
	return append(all, workload{name: "GET /pets/{petId} while 64 connections order", ours: s.during(order, alone), other: s.on("idle", alone), p99AtMost: 3, latencyOnly: true})
}

// ours is the side of Petstore.
func (s *comparedServers) ours(l load) side { return s.on("Petstore", l) }

// on measures another load of Petstore.
func (s *comparedServers) on(name string, l load) side { return onServer(name, s.petstore.url, l) }

func (s *comparedServers) onPlain(l load) side { return onServer(plainName, s.plain.url, l) }

func (s *comparedServers) onConstant(l load) side { return onServer("HTTP limit", s.constantURL, l) }

func (s *comparedServers) onSwagger(kind string, connections int) side {
	const samplePets = 10 // the pets of a new swagger-petstore have the ids 1 to 10
	return onServer(swaggerName, s.swagger, load{kind: kind, connections: connections, mostPets: samplePets, mayFail: true})
}

func (s *comparedServers) onPgbench(connections int) side {
	return side{"pgbench", func(ctx context.Context, g *generator) (measurement, error) {
		return g.pgbench(ctx, s.pgbench, s.pgbenchDatabase, s.orderScript, connections)
	}}
}

// during measures a load of Petstore during another one.
func (s *comparedServers) during(other, l load) side {
	return side{"Petstore", func(ctx context.Context, g *generator) (measurement, error) {
		ended := make(chan error, 1)
		go func() {
			_, err := g.wrk(ctx, s.petstore.url, other)
			ended <- err
		}()
		m, err := g.wrk(ctx, s.petstore.url, l)
		if err := <-ended; err != nil {
			return m, err
		}
		return m, err
	}}
}

func onServer(name, url string, l load) side {
	return side{name, func(ctx context.Context, g *generator) (measurement, error) {
		m, err := g.wrk(ctx, url, l)
		if err != nil {
			return m, fmt.Errorf("%s: %w", name, err)
		}
		return m, nil
	}}
}
