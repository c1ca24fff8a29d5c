package rollout

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"noxmesh/events"
	"noxmesh/projections"
)

var noon = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

// machine is one node of a test's fleet.
type machine struct {
	id, arch, os, site string
	since              time.Duration // heard for this long without a gap, up to noon
}

// fleetOf folds a fleet as its log and heartbeats would have made it.
func fleetOf(t interface{ Fatal(...any) }, machines []machine) *projections.Mesh {
	m := projections.NewMesh()
	m.Listening.Pulse(noon.Add(-48*time.Hour), noon)
	for i, x := range machines {
		fact := &events.NodeEnrolled{Labels: map[string]string{"site": x.site}}
		e := events.New(x.id, fact, events.Origin{Source: "test", Actor: "test"}, noon)
		if err := m.ApplyEvent(events.Record{Seq: uint64(i + 1), Event: e}); err != nil {
			t.Fatal(err)
		}
		for at := noon.Add(-x.since); !at.After(noon); at = at.Add(min(projections.Gap, max(x.since, time.Second))) {
			raw, err := json.Marshal(events.Heartbeat{StartID: "s", Version: "1.0.0", Architecture: x.arch, OS: x.os, Kernel: "6.1"})
			if err != nil {
				t.Fatal(err)
			}
			m.ApplyHeartbeat(events.Message{Seq: m.HeartbeatSeq + 1, Subject: events.HeartbeatSubject(x.id), Stored: at, Data: raw})
		}
	}
	return m
}

func rolloutOver(m *projections.Mesh, seed uint64) *projections.Rollout {
	plan := events.RolloutStarted{Policy: DefaultPolicy(), Seed: seed}
	for id := range m.Nodes {
		plan.Cohort = append(plan.Cohort, id)
	}
	slices.Sort(plan.Cohort)
	return projections.NewRollout("r1", plan)
}

// TestCanariesAreSteady: whatever the seed, no canary is one of the nodes that
// were away lately, as long as half of the fleet was not.
func TestCanariesAreSteady(t *testing.T) {
	var fleet []machine
	for i := range 10 {
		fleet = append(fleet, machine{id: fmt.Sprintf("server%d", i), arch: "amd64", since: 24 * time.Hour},
			machine{id: fmt.Sprintf("laptop%d", i), arch: "amd64", since: 2 * time.Hour})
	}
	m := fleetOf(t, fleet)
	laptops := 0
	for seed := range uint64(200) {
		r := rolloutOver(m, seed)
		for _, id := range choose(m, r, candidates(m, r), 2, true) {
			if id[0] == 'l' {
				t.Fatalf("seed %d: %s is a canary", seed, id)
			}
		}
		for _, id := range choose(m, r, candidates(m, r), 2, false) {
			if id[0] == 'l' {
				laptops++
			}
		}
	}
	if laptops < 100 || laptops > 300 {
		t.Errorf("%d laptops of 400 nodes in later batches, want about half", laptops)
	}
}

// TestNewcomersCanBeCanaries: where nobody has a history, everybody may.
func TestNewcomersCanBeCanaries(t *testing.T) {
	m := fleetOf(t, []machine{{id: "a", since: 10 * time.Second}, {id: "b", since: 50 * time.Second}, {id: "c", since: time.Second}})
	seen := map[string]bool{}
	for seed := range uint64(50) {
		r := rolloutOver(m, seed)
		for _, id := range choose(m, r, candidates(m, r), 1, true) {
			seen[id] = true
		}
	}
	if len(seen) != 3 {
		t.Errorf("canaries were only ever %v", seen)
	}
}

// TestSpreadLaws: every kind is met as early as can be, batches are as large as
// asked for, nobody is chosen twice, and the same seed chooses the same.
func TestSpreadLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		archs := []string{"amd64", "arm64", "riscv64"}
		sites := []string{"ams", "fra", "lon", "nyc", "sin"}
		var fleet []machine
		n := rapid.IntRange(1, 60).Draw(t, "nodes")
		kinds := map[string]bool{}
		for i := range n {
			x := machine{id: fmt.Sprintf("n%02d", i), arch: rapid.SampledFrom(archs).Draw(t, "arch"), site: rapid.SampledFrom(sites).Draw(t, "site")}
			kinds[x.arch] = true
			fleet = append(fleet, x)
		}
		m := fleetOf(t, fleet)
		r := rolloutOver(m, rapid.Uint64().Draw(t, "seed"))
		count := rapid.IntRange(1, n).Draw(t, "count")
		got := choose(m, r, candidates(m, r), count, false)
		if len(got) != count || !slices.Equal(got, choose(m, r, candidates(m, r), count, false)) {
			t.Fatalf("asked for %d, got %v", count, got)
		}
		seen, met := map[string]bool{}, map[string]bool{}
		for i, id := range got {
			if seen[id] {
				t.Fatalf("%s twice in %v", id, got)
			}
			seen[id] = true
			met[m.Nodes[id].Heard.Architecture] = true
			if i+1 >= 2*len(archs) && len(met) < len(kinds) {
				t.Fatalf("%d nodes chosen and only %v met of %v", i+1, met, kinds)
			}
		}
	})
}

// TestTraits: what the failed have in common is found, what everybody has is
// not named.
func TestTraits(t *testing.T) {
	var fleet []machine
	for i := range 20 {
		arch := "amd64"
		if i < 4 {
			arch = "riscv64"
		}
		fleet = append(fleet, machine{id: fmt.Sprintf("n%02d", i), arch: arch, os: "Debian", site: []string{"ams", "fra"}[i%2]})
	}
	m := fleetOf(t, fleet)
	r := rolloutOver(m, 1)
	for _, member := range r.Members {
		member.Batch, member.Outcome = 1, projections.Passed
	}
	failed := func(ids ...string) (out []events.Failure) {
		for _, id := range ids {
			out = append(out, events.Failure{Node: id, Kind: events.RolledBack})
		}
		return out
	}
	for _, c := range []struct {
		failed []events.Failure
		want   string
	}{
		{failed("n00", "n01", "n02"), "[architecture riscv64 3/3 1/17]"},
		{failed("n05", "n06"), "[]"},
		{failed("n00"), "[]"},
	} {
		var got []string
		for _, x := range Traits(m, r, c.failed) {
			got = append(got, fmt.Sprintf("%s %s %d/%d %d/%d", x.Attribute, x.Value, x.Failed, x.FailedOf, x.Others, x.OthersOf))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%v have %v in common, want %s", c.failed, got, c.want)
		}
	}
}

// TestSelectors: what an operator can say to choose nodes.
func TestSelectors(t *testing.T) {
	m := fleetOf(t, []machine{
		{id: "a", arch: "amd64", os: "Debian GNU/Linux 12", site: "ams"},
		{id: "b", arch: "arm64", os: "Debian GNU/Linux 13", site: "fra"},
		{id: "c", arch: "amd64", os: "Windows Server", site: "ams"},
	})
	for _, c := range []struct{ selector, want string }{
		{"", "[a b c]"},
		{"site=ams", "[a c]"},
		{"site=ams,os!=windows", "[a]"},
		{"site in (ams,fra),arch=arm64", "[b]"},
		{"site notin (ams)", "[b]"},
		{"node=c", "[c]"},
		{"gpu", "[]"},
		{"!gpu,version=1.0.0", "[a b c]"},
	} {
		sel, err := ParseSelector(c.selector)
		if err != nil {
			t.Errorf("%q: %v", c.selector, err)
			continue
		}
		if got := fmt.Sprint(selectNodes(m, sel)); got != c.want {
			t.Errorf("%q selects %s, want %s", c.selector, got, c.want)
		}
	}
	for _, bad := range []string{"site=ams fra", "=ams", "site in ams", ",,"} {
		if _, err := ParseSelector(bad); err == nil {
			t.Errorf("%q reads as a selector", bad)
		}
	}
}
