package main

import (
	"bytes"
	_ "embed"
	"text/template"

	"petstore/internal/tools/must"
)

const chartTitle = "Requests per second at 64 connections, Petstore and a plain handler"

//go:embed chart.svg.tmpl
var chartSource string

var chartTemplate = template.Must(template.New("chart").Parse(chartSource))

// chartGroup is the two bars of one workload, with sizes in pixels.
type chartGroup struct {
	Name, Times, Ours, Plain string
	Y, OursWidth, PlainWidth int
}

// chart returns an SVG with the requests per second of the workloads with chart set.
func (r *report) chart() []byte {
	const top, groupSpace, barLength = 86, 62, 560
	most := 0.0
	for _, l := range r.results {
		if l.chart {
			most = max(most, medianOf(l.measured[0], rate), medianOf(l.measured[1], rate))
		}
	}
	var groups []chartGroup
	for _, l := range r.results {
		if l.chart {
			plain, ours := medianOf(l.measured[0], rate), medianOf(l.measured[1], rate)
			groups = append(groups, chartGroup{
				l.name, l.line("", rate, figures).ratio, thousands(ours), thousands(plain),
				top + groupSpace*len(groups), int(barLength * ours / most), int(barLength * plain / most),
			})
		}
	}
	var out bytes.Buffer
	must.OK(chartTemplate.Execute(&out, map[string]any{"Title": chartTitle, "Height": top + groupSpace*len(groups), "Groups": groups}))
	return out.Bytes()
}
