package docs

import "strings"

// Link is a link to a page. Its path is relative to the server.
type Link struct {
	Path, Title, Description string
	Current                  bool
	Parts                    []Part
}

// Part is a part of the current page.
type Part struct {
	ID, Text   string
	Method     string // of an operation
	Status     int    // of an error
	Deprecated bool
}

// NavGroup is a heading of the sidebar and its links.
type NavGroup struct {
	Title string
	Links []Link
}

func (p *page) link() *Link {
	return &Link{Path: strings.TrimPrefix(p.Path, "/"), Title: p.Title, Description: p.Description}
}

// Nav returns the sidebar, with the parts of this page.
func (p *page) Nav() []NavGroup {
	var nav []NavGroup
	for _, other := range p.pages {
		if other.hidden {
			continue
		}
		title := other.group()
		if len(nav) == 0 || nav[len(nav)-1].Title != title {
			nav = append(nav, NavGroup{Title: title})
		}
		link := *other.link()
		if other.Path == p.Path {
			link.Current, link.Parts = true, p.parts()
		}
		last := &nav[len(nav)-1]
		last.Links = append(last.Links, link)
	}
	return nav
}

// Cards returns the guides, and all other pages.
func (p *page) Cards() []NavGroup {
	nav := p.Nav()
	rest := NavGroup{Title: "Reference"}
	for _, group := range nav[1:] {
		rest.Links = append(rest.Links, group.Links...)
	}
	return []NavGroup{nav[0], rest}
}

// group returns the heading of the sidebar above a page.
func (p *page) group() string {
	switch {
	case p.template == "guide" && p.source != "changelog":
		return "Guides"
	case p.Tag == nil:
		return "Appendix"
	case p.Tag.Group == "":
		return "More operations"
	default:
		return p.Tag.Group
	}
}

// parts lists the operations or the headings of a page.
func (p *page) parts() []Part {
	var parts []Part
	for _, h := range p.Headings {
		if h.Level == 2 {
			parts = append(parts, Part{ID: h.ID, Text: h.Text})
		}
	}
	switch {
	case p.Tag != nil:
		for _, o := range p.Tag.Operations {
			parts = append(parts, Part{ID: o.ID, Text: o.Summary, Method: o.Method, Deprecated: o.Deprecated})
		}
		if len(p.Tag.EventTypes()) > 0 {
			parts = append(parts, Part{ID: "types", Text: "Types of events"})
		}
	case p.template == "models":
		for _, m := range p.reference.Models {
			parts = append(parts, Part{ID: "model-" + m.Name, Text: m.Name})
		}
	case p.template == "errors":
		for _, e := range p.Site.Problems {
			parts = append(parts, Part{ID: e.ID(), Text: e.Code, Status: e.Status})
		}
	}
	return parts
}

// Crumbs lists the pages above a page.
func (p *page) Crumbs() []Link {
	if p.hidden {
		return nil
	}
	crumbs := []Link{{Path: "docs", Title: "Docs"}}
	if p.Tag != nil || p.template == "models" {
		crumbs = append(crumbs, Link{Title: "Reference"})
	}
	if group := p.group(); group != p.Title && group != "Appendix" && group != "More operations" {
		crumbs = append(crumbs, Link{Title: group})
	}
	return append(crumbs, Link{Title: p.Title})
}
