package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
)

// printData prints a JSON value for people: a line for each field in the order in
// which they are stored, and lists of plain values on one line, wrapped.
func printData(out io.Writer, raw json.RawMessage, indent string) {
	for _, line := range dataLines(raw) {
		fmt.Fprintln(out, indent+line)
	}
}

func dataLines(raw json.RawMessage) []string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return nil
	}
	var out []string
	switch raw[0] {
	case '{':
		for _, f := range fields(raw) {
			lines := dataLines(f.value)
			switch {
			case plain(f.value) && len(lines) == 1:
				out = append(out, f.name+": "+lines[0])
			case len(lines) == 0:
				out = append(out, f.name+": none")
			default:
				out = append(out, f.name+":")
				for _, line := range lines {
					out = append(out, "  "+line)
				}
			}
		}
	case '[':
		var items []json.RawMessage
		if json.Unmarshal(raw, &items) != nil {
			return []string{string(raw)}
		}
		if plain(raw) {
			var words []string
			for _, item := range items {
				words = append(words, scalar(item))
			}
			return wrapList(words, screen-20)
		}
		for _, item := range items {
			for i, line := range dataLines(item) {
				mark := "- "
				if i > 0 {
					mark = "  "
				}
				out = append(out, mark+line)
			}
		}
	default:
		return []string{scalar(raw)}
	}
	return out
}

type member struct {
	name  string
	value json.RawMessage
}

// fields are those of an object, in their order.
func fields(raw json.RawMessage) (out []member) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		return nil
	}
	for dec.More() {
		name, err := dec.Token()
		var value json.RawMessage
		if err != nil || dec.Decode(&value) != nil {
			return out
		}
		out = append(out, member{fmt.Sprint(name), value})
	}
	return out
}

// plain says whether a value goes onto one line: it is a scalar, or a list of
// words.
func plain(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] == '{' {
		return false
	}
	if raw[0] != '[' {
		return true
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return false
	}
	for _, item := range items {
		if item[0] == '{' || item[0] == '[' || item[0] == '"' && strings.ContainsFunc(scalar(item), unicode.IsSpace) {
			return false
		}
	}
	return true
}

// scalar is a string without its quotes if it can do without them, or the value
// as it is.
func scalar(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return string(raw)
	}
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

func wrapList(words []string, width int) []string {
	if len(words) == 0 {
		return nil
	}
	return wrapWords(strings.Join(words, " "), width)
}
