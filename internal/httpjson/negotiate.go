package httpjson

import (
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// maxList is the number of bytes of a list in a header that the server reads. Reading 16 KB of short
// elements takes milliseconds, and over HTTP/2 a client sends them in 90 bytes.
const maxList = 1 << 10

// listOf joins the fields of a header that is a list (RFC 9110, section 5.3). A longer list than most
// bytes ends with the last element that is whole in them.
func listOf(fields []string, most int) string {
	list := strings.Join(fields, ",")
	if len(list) > most {
		list = list[:max(0, strings.LastIndexByte(list[:most+1], ','))]
	}
	return list
}

// Quality says how much a client wants a media type.
type Quality struct {
	Weight float64 // from 0, which means not acceptable, to 1
	// Specificity is the specificity of the range that matches: 3 for the type itself, 2 for a range such
	// as text/*, 1 for */*, and 0 for none.
	Specificity int
}

// Values of Specificity.
const (
	inGroup = 2
	itself  = 3
)

// QualityOf returns how much Accept (RFC 9110, section 12.5.1) wants each of some media types. The
// most specific matching range decides. It ignores invalid ranges. Without a valid one, the
// client accepts everything.
func QualityOf(header http.Header, mediaTypes ...string) []Quality {
	best, readable := make([]Quality, len(mediaTypes)), false
	for rest := listOf(header["Accept"], maxList); rest != ""; {
		var field string
		field, rest = cutQuoted(rest, ',')
		mediaRange, parameters, err := mime.ParseMediaType(field)
		if err != nil || !strings.Contains(mediaRange, "/") {
			continue
		}
		weight := 1.0
		if text, weighted := parameters["q"]; weighted {
			if weight, err = strconv.ParseFloat(text, 64); err != nil || !(weight >= 0 && weight <= 1) {
				continue
			}
		}
		readable = true
		for i, mediaType := range mediaTypes {
			if specific := specificity(mediaRange, mediaType); specific > best[i].Specificity {
				best[i] = Quality{weight, specific}
			}
		}
	}
	if !readable {
		return slices.Repeat([]Quality{{Weight: 1}}, len(mediaTypes))
	}
	return best
}

// specificity returns the specificity of a media range for a type, or 0 if it does not match.
func specificity(mediaRange, mediaType string) int {
	group, _, _ := strings.Cut(mediaType, "/")
	switch mediaRange {
	case mediaType:
		return itself
	case group + "/*":
		return inGroup
	case "*/*":
		return 1
	default:
		return 0
	}
}

// Prefers reports whether a request prefers a media type to JSON. If Accept gives both the same
// weight, it must name the type no less precisely than JSON. A range is enough if JSON is not in it, such
// as text/*.
func Prefers(header http.Header, mediaType string) bool {
	qualities := QualityOf(header, mediaType, ContentType)
	wanted, json := qualities[0], qualities[1]
	if wanted.Weight != json.Weight {
		return wanted.Weight > json.Weight
	}
	least := inGroup
	if strings.HasPrefix(mediaType, "application/") { // JSON is in the group
		least = itself
	}
	return wanted.Weight > 0 && wanted.Specificity >= max(json.Specificity, least)
}

// AcceptsJSON reports whether Accept allows application/json.
func AcceptsJSON(header http.Header) bool { return QualityOf(header, ContentType)[0].Weight > 0 }

// IsJSON reports whether the headers of the body are supported.
func IsJSON(r *http.Request) bool {
	types := r.Header.Values("Content-Type")
	if len(types) != 1 || len(types[0]) > maxList || len(r.Header.Values("Content-Encoding")) > 0 {
		return false
	}
	mediaType, _, err := mime.ParseMediaType(types[0])
	return err == nil && (mediaType == ContentType ||
		(mediaType == "application/merge-patch+json" && r.Method == http.MethodPatch))
}

// MayHaveNoBody reports whether a request has no headers of a body. The length of a body that they do not
// tell is unknown (HTTP/1.1 chunked, and HTTP/2), and may be 0.
func MayHaveNoBody(r *http.Request) bool {
	return r.ContentLength <= 0 && len(r.Header.Values("Content-Type")) == 0 && len(r.Header.Values("Content-Encoding")) == 0
}

// PrefersGzip reads Accept-Encoding (RFC 9110, section 12.5.3). It reports whether
// gzip, named or covered by "*", has a weight above 0, and identity has no greater one.
// It ignores invalid elements.
func PrefersGzip(header http.Header) bool {
	const unnamed = -1
	var forGzip, forIdentity, forOthers float64 = unnamed, unnamed, unnamed
	for one := range strings.SplitSeq(listOf(header["Accept-Encoding"], maxList), ",") {
		coding, parameter, weighted := strings.Cut(one, ";")
		weight := 1.0
		if weighted {
			weight = weightOf(parameter)
		}
		switch strings.ToLower(strings.TrimSpace(coding)) {
		case "gzip", "x-gzip":
			forGzip = weight
		case "identity":
			forIdentity = weight
		case "*":
			forOthers = weight
		}
	}
	if forGzip == unnamed {
		forGzip = forOthers
	}
	return forGzip > 0 && forGzip >= forIdentity
}

// weightOf returns the weight in a parameter such as "q=0.5", or 0 if it is invalid.
func weightOf(parameter string) float64 {
	name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
	weight, err := strconv.ParseFloat(value, 64)
	if err == nil && strings.EqualFold(name, "q") && weight >= 0 && weight <= 1 {
		return weight
	}
	return 0
}
