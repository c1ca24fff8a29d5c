package nodeagent_test

import (
	"strings"
	"testing"

	"noxmesh/events"
)

func TestAPackageThatStaysHalfInstalledIsPutBackAndRefused(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	b.retain(aPackage(t, "1.0.0"), "1.0.0")
	b.breaks = "1.1.0"
	start(t, b.config(m.creds("n1"), m.url()))
	m.declare("n1", 1, host(events.HostSpec{Release: m.add(aPackage(t, "1.1.0"), "1.1.0")}))
	if _, f := m.report("n1", events.ReportFailedToApply); !strings.Contains(f.(*events.NodeFailedToApply).Error, "its postinst fails") {
		t.Errorf("report: %+v", f)
	}
	if _, f := m.report("n1", events.ReportRefused); f.(*events.NodeRefused).Version != "1.1.0" {
		t.Errorf("report: %+v", f)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.half || b.installed != "1.0.0" {
		t.Errorf("installed: %s, half %v", b.installed, b.half)
	}
}
