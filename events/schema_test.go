package events

import (
	"bufio"
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"noxmesh/events/schematest"
)

var rewrite = flag.Bool("rewrite", false, "write the schemas in docs/schemas anew")

func schemaOf(typ string) string { return "events/" + typ + ".json" }

// TestSchemas: tools have a schema of the envelope and one of each type's data,
// and no other.
func TestSchemas(t *testing.T) {
	envelope := schematest.With(schematest.Of(t, Event{}), "data", schematest.Of(t, struct{}{}))
	schematest.Golden(t, "event.json", envelope, *rewrite)
	for typ, fresh := range factTypes {
		schematest.Golden(t, schemaOf(typ), schematest.Of(t, fresh()), *rewrite)
	}
	for _, name := range schematest.Names(t, "events") {
		if factTypes[name[:len(name)-len(filepath.Ext(name))]] == nil {
			t.Errorf("docs/schemas/events/%s is of no type there is: delete it", name)
		}
	}
}

// TestRecordedEventsFitTheirSchemas: what was ever written fits the schemas of now.
func TestRecordedEventsFitTheirSchemas(t *testing.T) {
	logs, err := filepath.Glob("../testdata/logs/*.jsonl")
	if err != nil || len(logs) == 0 {
		t.Fatalf("recorded logs: %v %v", logs, err)
	}
	envelope := schematest.Validator(t, "event.json")
	data := map[string]func([]byte) error{}
	for typ := range factTypes {
		data[typ] = schematest.Validator(t, schemaOf(typ))
	}
	seen := map[string]bool{}
	for _, path := range logs {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
			if err := envelope(lines.Bytes()); err != nil {
				t.Errorf("%s: %s: %v", path, lines.Text(), err)
			}
			e, err := Decode(lines.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			seen[e.Type] = true
			if err := data[e.Type](e.Data); err != nil {
				t.Errorf("%s: %s: %v", path, lines.Text(), err)
			}
		}
	}
	if len(seen) < 10 {
		t.Errorf("the logs have %d types of events", len(seen))
	}
	for _, bad := range []string{`{}`, `[]`, `{"specversion":"1.0","id":"x","type":"t","source":"s","subject":"s","time":"yesterday","actor":"a","cause":"","data":{}}`} {
		if envelope([]byte(bad)) == nil {
			t.Errorf("%s passes for an event", bad)
		}
	}
	if halted := data["mesh.rollout.halted.v1"]; halted([]byte(`{"batch":"one"}`)) == nil || !slices.Contains(schematest.Names(t, "events"), "mesh.rollout.halted.v1.json") {
		t.Error("nonsense passes for a halt")
	}
}
