package httpjson

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// Quality says how much a client wants a media type.
type Quality struct {
	Weight float64 // from 0, which means not acceptable, to 1
	// Specificity is the specificity of the range that matches: 3 for the type itself, 2 for a range such
	// as text/*, 1 for */*, and 0 for none.
	Specificity int
}

// QualityOf returns how much Accept (RFC 9110, section 12.5.1) wants a media type. The most
// specific matching range decides. It ignores invalid ranges. Without a valid one, the
// client accepts everything.
func QualityOf(header http.Header, mediaType string) Quality {
	fields := header["Accept"]
	if len(fields) == 0 {
		return Quality{Weight: 1}
	}
	group, _, _ := strings.Cut(mediaType, "/")
	specificity := map[string]int{"*/*": 1, group + "/*": 2, mediaType: 3}
	var best Quality
	readable := false
	for rest := strings.Join(fields, ","); rest != ""; {
		var field string
		field, rest = cutQuoted(rest, ',')
		mediaRange, parameters, err := mime.ParseMediaType(field)
		if err != nil {
			continue
		}
		weight := 1.0
		if text, weighted := parameters["q"]; weighted {
			if weight, err = strconv.ParseFloat(text, 64); err != nil || !(weight >= 0 && weight <= 1) {
				continue
			}
		}
		readable = true
		if specific := specificity[mediaRange]; specific > best.Specificity {
			best = Quality{weight, specific}
		}
	}
	if !readable {
		return Quality{Weight: 1}
	}
	return best
}

// Prefers reports whether a request prefers a media type to JSON. If Accept gives both the same
// weight, it must name the type, at least by text/*, and no less precisely than JSON.
func Prefers(header http.Header, mediaType string) bool {
	wanted, json := QualityOf(header, mediaType), QualityOf(header, ContentType)
	if wanted.Weight != json.Weight {
		return wanted.Weight > json.Weight
	}
	const typeRange = 2
	return wanted.Weight > 0 && wanted.Specificity >= max(json.Specificity, typeRange)
}

// AcceptsJSON reports whether Accept allows application/json.
func AcceptsJSON(header http.Header) bool { return QualityOf(header, ContentType).Weight > 0 }

// IsJSON reports whether the headers of the body are supported.
func IsJSON(r *http.Request) bool {
	types := r.Header.Values("Content-Type")
	if len(types) != 1 || len(r.Header.Values("Content-Encoding")) > 0 {
		return false
	}
	mediaType, _, err := mime.ParseMediaType(types[0])
	return err == nil && (mediaType == ContentType ||
		(mediaType == "application/merge-patch+json" && r.Method == http.MethodPatch))
}

// HasNoBody reports whether a request has neither a body nor headers of one.
func HasNoBody(r *http.Request) bool {
	return r.ContentLength == 0 && len(r.Header.Values("Content-Type")) == 0 && len(r.Header.Values("Content-Encoding")) == 0
}

// PrefersGzip reads Accept-Encoding (RFC 9110, section 12.5.3). It reports whether
// gzip, named or covered by "*", has a weight above 0, and identity has no greater one.
// It ignores invalid elements.
func PrefersGzip(header http.Header) bool {
	const unnamed = -1
	var forGzip, forIdentity, forOthers float64 = unnamed, unnamed, unnamed
	for _, field := range header.Values("Accept-Encoding") {
		for one := range strings.SplitSeq(field, ",") {
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
