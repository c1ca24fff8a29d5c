// Package schematest makes JSON Schemas (2020-12) of Go types and checks values
// by them. Only tests use it: what the programs write is made by encoding/json,
// and a test says that the schemas in docs/schemas are of the same types.
//
// A schema says what a reader may rely on. It allows further fields, since fields
// are only ever added, and null for a list or a map that is always there, since
// that is how an empty one may be written.
package schematest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
)

// root is the directory of the module.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.mod above the test")
	return ""
}

// Of makes the schema of a value's type. Comments become descriptions. Durations
// are text, as they write themselves.
func Of(t *testing.T, v any) *jsonschema.Schema {
	t.Helper()
	r := &jsonschema.Reflector{
		Anonymous: true, AllowAdditionalProperties: true, ExpandedStruct: true,
		Mapper: func(typ reflect.Type) *jsonschema.Schema {
			if typ.Kind() == reflect.Int64 && typ.Name() == "Duration" {
				return &jsonschema.Schema{Type: "string", Pattern: `^-?([0-9.]+(h|m|s|ms|µs|ns))+$`, Description: "a duration like 1h2m3s"}
			}
			return nil
		},
	}
	t.Chdir(root(t)) // comments are found by the path that a package has below it
	for _, dir := range []string{"events", "projections"} {
		if err := r.AddGoComments("noxmesh", dir); err != nil {
			t.Fatal(err)
		}
	}
	s := r.Reflect(v)
	s.Required = slices.DeleteFunc(s.Required, shadowed(reflect.TypeOf(v)))
	nullable(s)
	for _, def := range s.Definitions {
		nullable(def)
	}
	return s
}

// shadowed says that a field may be left out though one of the same name in an
// embedded struct may not: the outer one is what is written.
func shadowed(t reflect.Type) func(name string) bool {
	may := map[string]bool{}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for i := range t.NumField() {
		name, opts, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		may[name] = strings.Contains(opts, "omit")
	}
	return func(name string) bool { return may[name] }
}

// With puts the schema of a property into another.
func With(s *jsonschema.Schema, property string, of *jsonschema.Schema) *jsonschema.Schema {
	for name, def := range of.Definitions {
		if s.Definitions == nil {
			s.Definitions = jsonschema.Definitions{}
		}
		s.Definitions[name] = def
	}
	of.Definitions, of.Version = nil, ""
	s.Properties.Set(property, of)
	return s
}

// nullable lets lists and maps that are always there be null.
func nullable(s *jsonschema.Schema) {
	if s.Properties == nil {
		return
	}
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		v := p.Value
		isMap := v.Type == "object" && v.AdditionalProperties != nil
		if !slices.Contains(s.Required, p.Key) || v.Type != "array" && !isMap {
			continue
		}
		description := v.Description
		v.Description = ""
		p.Value = &jsonschema.Schema{Description: description, OneOf: []*jsonschema.Schema{v, {Type: "null"}}}
	}
}

// Golden compares a schema with its file below docs/schemas, or writes it there.
func Golden(t *testing.T, name string, s *jsonschema.Schema, rewrite bool) {
	t.Helper()
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	raw = append(raw, '\n')
	path := file(t, name)
	if rewrite {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, raw) {
		t.Errorf("docs/schemas/%s is not of the type as it is now (%v): run the test with -rewrite", name, err)
	}
}

// Validator checks JSON by a schema in docs/schemas.
func Validator(t *testing.T, name string) func(raw []byte) error {
	t.Helper()
	c := validator.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(file(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return func(raw []byte) error {
		v, err := validator.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			return err
		}
		return s.Validate(v)
	}
}

// Names are the schemas in a folder of docs/schemas.
func Names(t *testing.T, folder string) []string {
	t.Helper()
	list, err := os.ReadDir(file(t, folder))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range list {
		if !f.IsDir() {
			out = append(out, f.Name())
		}
	}
	return out
}

func file(t *testing.T, name string) string {
	return filepath.Join(root(t), "docs", "schemas", filepath.FromSlash(name))
}
