// Command broken is a host that does not start.
package main

import "os"

func main() {
	_, _ = os.Stderr.WriteString("nox-mesh-host: this version is broken on purpose\n")
	os.Exit(1)
}
