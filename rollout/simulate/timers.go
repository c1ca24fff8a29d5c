package simulate

import "time"

// timer is something that happens at a moment: fn, unless it was called off.
type timer struct {
	at  time.Duration // since the world began
	seq uint64        // of two at the same moment the one set first goes first
	fn  func()
}

// timers is a heap, the next one first. It is written out rather than put
// behind container/heap, which would box each timer.
type timers struct {
	heap []timer
	seq  uint64
}

func (a timer) before(b timer) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func (t *timers) add(at time.Duration, fn func()) {
	t.seq++
	t.heap = append(t.heap, timer{at, t.seq, fn})
	h := t.heap
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h[i].before(h[parent]) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

// next is when the first timer is due.
func (t *timers) next() (time.Duration, bool) {
	if len(t.heap) == 0 {
		return 0, false
	}
	return t.heap[0].at, true
}

// pop takes the first timer out.
func (t *timers) pop() timer {
	h := t.heap
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], timer{}
	h = h[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(h[i]) {
			break
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
	t.heap = h
	return first
}
