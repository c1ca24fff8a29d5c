package lab

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// Banner is text in a frame that nobody reads past.
func Banner(lines ...string) string {
	bar := strings.Repeat("*", 78)
	return "\n" + bar + "\n**\n**  " + strings.Join(lines, "\n**  ") + "\n**\n" + bar + "\n"
}

// Loud writes to standard error, also when a "go test" without -v is about to
// throw the output of a test that passes away: then to that program's own.
func Loud(text string) {
	fmt.Fprint(os.Stderr, text)
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid())); err != nil || string(comm) != "go\n" {
		return
	}
	for _, arg := range os.Args {
		if strings.HasPrefix(arg, "-test.v") && arg != "-test.v=false" {
			return
		}
	}
	if f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/2", os.Getppid()), os.O_WRONLY|os.O_APPEND, 0); err == nil {
		_, _ = io.WriteString(f, text)
		_ = f.Close()
	}
}
