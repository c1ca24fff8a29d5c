package nodeagent

import (
	"math/rand/v2"
	"time"
)

// backoff gives the pause before try n (from 1). It doubles from least up to
// the cap most, and the jitter comes on top of the cap: with the jitter inside
// it, all nodes that wait long would come at the same moment again.
func backoff(n int, least, most time.Duration) time.Duration {
	d := least
	for i := 1; i < n && d < most; i++ {
		d *= 2
	}
	d = min(d, most)
	return least + rand.N(d)
}

// about gives d plus or minus a tenth.
func about(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}
