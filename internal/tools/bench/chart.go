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

// The sizes of the chart in pixels.
const (
	chartWidth, chartLeft, chartTop = 720, 20, 86
	barLength, barThick, groupSpace = 560, 14, 62
)

// chart is a bar chart.
type chart struct {
	Title                      string
	Width, Height, Left, Thick int
	Groups                     []chartGroup
}

// chartGroup is the bars of one workload: Petstore and the plain handler.
type chartGroup struct {
	Name, Times string
	Y           int // of the name
	Bars        [2]chartBar
}

type chartBar struct {
	Class, Label            string
	Y, Width, End, Baseline int
}

// chart returns an SVG with the requests per second of the workloads with chart set.
func (r *report) chart() []byte {
	c := chart{Title: chartTitle, Width: chartWidth, Left: chartLeft, Thick: barThick}
	most := 0.0
	for _, l := range r.results {
		if l.chart {
			most = max(most, medianOf(l.measured[0], rate), medianOf(l.measured[1], rate))
		}
	}
	y := chartTop
	for _, l := range r.results {
		if !l.chart {
			continue
		}
		times, _, _ := l.measured.ratios(rate)
		g := chartGroup{Name: l.name, Times: ratio(times), Y: y}
		for i, class := range []string{"ours", "plain"} {
			perSecond := medianOf(l.measured[1-i], rate)
			bar := chartBar{Class: class, Label: thousands(perSecond) + "/s", Y: y + 7 + i*(barThick+2), Width: int(barLength * perSecond / most)}
			bar.End, bar.Baseline = chartLeft+bar.Width+6, bar.Y+barThick-2
			g.Bars[i] = bar
		}
		c.Groups = append(c.Groups, g)
		y += groupSpace
	}
	c.Height = y - groupSpace/4
	var out bytes.Buffer
	must.OK(chartTemplate.Execute(&out, c))
	return out.Bytes()
}
