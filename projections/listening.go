package projections

import "time"

// Listening is when the mesh was listening, as a list of spans in order. It is
// a fold of the mesh's own pulses. Time outside of the spans is deaf time: a
// node that was not heard then was not silent.
type Listening struct {
	Spans []Span
}

// Span is a time without a gap.
type Span struct{ From, To time.Time }

// maxSpans bounds the list. Each gap costs one; the oldest go first.
const maxSpans = 1024

// Pulse says that some server listened from since until at. Spans of several
// servers merge.
func (l *Listening) Pulse(since, at time.Time) {
	if since.After(at) || since.IsZero() {
		since = at
	}
	s := Span{since, at}
	// Nearly always the newest span grows; only what it touches is looked at.
	i := len(l.Spans)
	for i > 0 && !l.Spans[i-1].To.Before(s.From) {
		i--
	}
	j := i
	for j < len(l.Spans) && !l.Spans[j].From.After(s.To) {
		if l.Spans[j].From.Before(s.From) {
			s.From = l.Spans[j].From
		}
		if l.Spans[j].To.After(s.To) {
			s.To = l.Spans[j].To
		}
		j++
	}
	l.Spans = append(l.Spans[:i], append([]Span{s}, l.Spans[j:]...)...)
	if len(l.Spans) > maxSpans {
		l.Spans = append([]Span(nil), l.Spans[len(l.Spans)-maxSpans:]...)
	}
}

// Since is how long the mesh has listened since t, up to its last pulse.
func (l Listening) Since(t time.Time) time.Duration {
	var sum time.Duration
	for i := len(l.Spans) - 1; i >= 0; i-- {
		from := l.Spans[i].From
		if !l.Spans[i].To.After(t) {
			break
		}
		if from.Before(t) {
			from = t
		}
		sum += l.Spans[i].To.Sub(from)
	}
	return sum
}

// Within is how long the mesh listened between two moments.
func (l Listening) Within(from, to time.Time) time.Duration {
	var sum time.Duration
	for i := len(l.Spans) - 1; i >= 0 && l.Spans[i].To.After(from); i-- {
		a, b := l.Spans[i].From, l.Spans[i].To
		if a.Before(from) {
			a = from
		}
		if b.After(to) {
			b = to
		}
		if b.After(a) {
			sum += b.Sub(a)
		}
	}
	return sum
}

// AgoFrom is the moment from which on the mesh had listened for d at a given
// one, or its first.
func (l Listening) AgoFrom(to time.Time, d time.Duration) time.Time {
	for i := len(l.Spans) - 1; i >= 0; i-- {
		s := l.Spans[i]
		if s.To.After(to) {
			s.To = to
		}
		if !s.To.After(s.From) {
			continue
		}
		if length := s.To.Sub(s.From); length < d {
			d -= length
			continue
		}
		return s.To.Add(-d)
	}
	if len(l.Spans) > 0 {
		return l.Spans[0].From
	}
	return time.Time{}
}

// Last is the newest span: since when the mesh has listened without a gap, and
// up to when what it heard was read. A reader that lags sees an earlier end.
func (l Listening) Last() Span {
	if len(l.Spans) == 0 {
		return Span{}
	}
	return l.Spans[len(l.Spans)-1]
}
