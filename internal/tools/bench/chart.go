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

// chartGroup is the bars of one workload.
type chartGroup struct {
	Name, Times string
	Y           int // of the group, in pixels
	Ours, Plain chartBar
}

// chartBar is a bar with its label.
type chartBar struct {
	Label      string
	Width, End int
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
	bar := func(rounds []measurement) chartBar {
		perSecond := medianOf(rounds, rate)
		width := int(barLength * perSecond / most)
		return chartBar{thousands(perSecond) + "/s", width, width + 6}
	}
	y := top
	var groups []chartGroup
	for _, l := range r.results {
		if l.chart {
			times, _, _ := l.measured.ratios(rate)
			groups = append(groups, chartGroup{l.name, ratio(times), y, bar(l.measured[1]), bar(l.measured[0])})
			y += groupSpace
		}
	}
	var out bytes.Buffer
	must.OK(chartTemplate.Execute(&out, map[string]any{"Title": chartTitle, "Height": y - groupSpace/4, "Groups": groups}))
	return out.Bytes()
}
