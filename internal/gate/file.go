package gate

import (
	"maps"
	"net/http"

	"github.com/gin-gonic/gin"

	"petstore/internal/docs"
	"petstore/internal/httpjson"
)

// writeFile sends a static file, or 304 if the client already has it. A page has two formats, of
// which Accept chooses. The error is [httpjson.ErrPreconditionFailed].
func writeFile(c *gin.Context, file *docs.File) error {
	vary := varyOfCoded
	if file.Markdown != nil {
		vary += ", Accept"
		qualities := httpjson.QualityOf(c.Request.Header, MarkdownType, "text/html")
		markdown, html := qualities[0], qualities[1]
		if markdown.Specificity == exactly && markdown.Weight >= html.Weight && markdown.Weight > 0 {
			file = file.Markdown
		}
	}
	form, zip := file.Plain, httpjson.PrefersGzip(c.Request.Header)
	if zip {
		form = file.Compressed
	}
	chosen := form()
	unmodified, err := httpjson.CheckPreconditions(c.Request, chosen.ETag)
	if err != nil {
		return err
	}
	header := c.Writer.Header()
	maps.Copy(header, file.Fields)
	header.Set("ETag", chosen.ETag)
	header.Set("Vary", vary)
	if unmodified {
		c.Status(http.StatusNotModified)
		return nil
	}
	if zip {
		header.Set("Content-Encoding", "gzip")
	}
	limitDrain(c, len(chosen.Text))
	httpjson.Send(c.Writer, http.StatusOK, file.ContentType, chosen.Text)
	return nil
}

// sendNotFound sends a page to a browser. Other clients get [ErrRouteNotFound], also those
// that accept HTML and send a key.
func (g *Gate) sendNotFound(c *gin.Context) error {
	header, method := c.Request.Header, c.Request.Method
	qualities, page := httpjson.QualityOf(header, "text/html", httpjson.ContentType), g.api.Pages[docs.NotFoundPath]
	html, json := qualities[0], qualities[1]
	if method != http.MethodGet && method != http.MethodHead || page == nil || checkPath(c) != nil || header.Get("Authorization") != "" ||
		html.Specificity != exactly || html.Weight <= json.Weight {
		return ErrRouteNotFound
	}
	maps.Copy(c.Writer.Header(), page.Fields)
	c.Header("Cache-Control", "no-store")
	c.Header("Vary", varyOfAll+", Accept")
	limitDrain(c, 0)
	httpjson.Send(c.Writer, http.StatusNotFound, page.ContentType, docs.Relocate(page.Plain().Text, c.Request.URL.EscapedPath()))
	return nil
}

// exactly is the specificity of a media type that Accept names.
const exactly = 3
