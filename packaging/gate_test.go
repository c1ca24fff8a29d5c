package packaging_test

import (
	"os"
	"strings"
	"testing"
)

func TestGate(t *testing.T) {
	tests := []struct {
		name   string
		change func(m *machine)
		exit   int
		says   string // "" means: nothing at all
		starts string // afterwards; "" means: no such file
	}{
		{"first start of an unconfirmed version", func(m *machine) { m.remove(m.state + "/starts") }, 0, "", "1.2.0 1\n"},
		{"one more start", func(m *machine) {}, 0, "", "1.2.0 4\n"},
		{"the last that is let through", func(m *machine) { m.write(m.state+"/starts", "1.2.0 9\n") }, 0, "", "1.2.0 10\n"},
		{"too many", func(m *machine) { m.write(m.state+"/starts", "1.2.0 10\n") }, 1,
			"1.2.0 was started 10 times and never confirmed; it is not started again, so that 1.1.0 can come back", "1.2.0 10\n"},
		{"too many, known-good with an epoch", func(m *machine) {
			m.write(m.state+"/known-good", "1:1.1.0\n")
			m.retain("nox-mesh-host_1%3a1.1.0_amd64.deb")
			m.write(m.state+"/starts", "1.2.0 10\n")
		}, 1, "so that 1:1.1.0 can come back", "1.2.0 10\n"},
		{"too many, but no package to go back to", func(m *machine) {
			m.write(m.state+"/starts", "1.2.0 10\n")
			m.remove(m.state + "/packages")
		}, 0, "no rollback to make", "1.2.0 10\n"},
		{"too many, but rolled back already", func(m *machine) {
			m.write(m.state+"/starts", "1.2.0 10\n")
			m.write(m.state+"/rollback", "id=1\nstatus=done\n")
		}, 0, "no rollback to make", "1.2.0 10\n"},
		{"too many, and a rollback was cut short", func(m *machine) {
			m.write(m.state+"/starts", "1.2.0 10\n")
			m.write(m.state+"/rollback", "id=1\nstatus=begun\n")
		}, 1, "so that 1.1.0 can come back", "1.2.0 10\n"},
		{"the confirmed version", func(m *machine) { m.write(m.fake+"/dpkg-version", "1.1.0") }, 0, "", "1.2.0 3\n"},
		{"another version was counted", func(m *machine) { m.write(m.state+"/starts", "1.1.9 10\n") }, 0, "", "1.2.0 1\n"},
		{"first install", func(m *machine) {
			m.remove(m.state + "/known-good")
			m.remove(m.state + "/starts")
		}, 0, "", ""},
		{"known-good is empty", func(m *machine) { m.write(m.state+"/known-good", "") }, 0, "holds no version", "1.2.0 3\n"},
		{"known-good is garbage", func(m *machine) { m.write(m.state+"/known-good", "\x00\x01 ; rm -rf /\n") }, 0, "holds no version", "1.2.0 3\n"},
		{"counter is empty", func(m *machine) { m.write(m.state+"/starts", "") }, 0, "", "1.2.0 1\n"},
		{"counter is garbage", func(m *machine) { m.write(m.state+"/starts", "1.2.0 $(reboot)\n") }, 0, "", "1.2.0 1\n"},
		{"counter is enormous", func(m *machine) { m.write(m.state+"/starts", "1.2.0 99999999999999999999\n") }, 0, "", "1.2.0 1\n"},
		{"counter has leading zeros", func(m *machine) { m.write(m.state+"/starts", "1.2.0 008\n") }, 0, "", "1.2.0 9\n"},
		{"counter without newline", func(m *machine) { m.write(m.state+"/starts", "1.2.0 4") }, 0, "", "1.2.0 5\n"},
		{"dpkg does not answer", func(m *machine) { m.remove(m.fake + "/dpkg-version") }, 0, "cannot ask dpkg", "1.2.0 3\n"},
		{"counter cannot be written", func(m *machine) {
			if err := os.MkdirAll(m.state+"/starts.tmp", 0o755); err != nil {
				m.t.Fatal(err)
			}
		}, 0, "cannot write", "1.2.0 3\n"},
		{"no state directory", func(m *machine) { m.remove(m.state) }, 0, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			tt.change(m)
			exit, said := m.run("gate")
			if exit != tt.exit {
				t.Errorf("exit %d, want %d; it said: %s", exit, tt.exit, said)
			}
			if tt.says == "" && said != "" || !strings.Contains(said, tt.says) {
				t.Errorf("it said %q, want %q", said, tt.says)
			}
			if got := m.read(m.state + "/starts"); got != tt.starts {
				t.Errorf("starts holds %q, want %q", got, tt.starts)
			}
		})
	}
}
