package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
	"noxmesh/projections"
)

// StreamOptions are the choices an installation has. All else is fixed.
type StreamOptions struct {
	// Replicas of each stream; 1 if zero. More than one needs a cluster.
	Replicas int
	// HeartbeatAge is how long heartbeats are kept; 24 h if zero.
	HeartbeatAge time.Duration
	// HeartbeatsFrom and ReportsFrom are the first sequences of HEARTBEATS and
	// REPORTS when they are made; 1 if zero.
	HeartbeatsFrom, ReportsFrom uint64
}

func (o StreamOptions) withDefaults() (StreamOptions, error) {
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.HeartbeatAge == 0 {
		o.HeartbeatAge = 24 * time.Hour
	}
	if o.Replicas < 1 || o.Replicas > 5 {
		return o, fmt.Errorf("%d replicas cannot be: choose 1, 3 or 5", o.Replicas)
	}
	if o.HeartbeatAge < time.Minute {
		return o, fmt.Errorf("heartbeats kept for %s only would look like silence: keep them for a minute at least", o.HeartbeatAge)
	}
	return o, nil
}

// room for headers in a message whose payload has a limit, in bytes
const headerRoom = 1 << 10

// streamConfigs is what the streams must be. The log comes first: everything
// else follows from it or can be lost.
func streamConfigs(o StreamOptions) []jetstream.StreamConfig {
	log := base(events.StreamEvents, o)
	log.Subjects = []string{
		events.EventSubject(events.AggregateRollout, "*"),
		events.EventSubject(events.AggregateDeclaration, "*"),
		events.EventSubject(events.AggregateNode, "*"),
		events.EventSubject(events.AggregateRelease, "*"),
		events.EventSubject(events.AggregateUser, "*"),
		events.EventSubject(events.AggregateKey, "*"),
	}
	log.Discard = jetstream.DiscardNew
	log.DenyDelete, log.DenyPurge = true, true
	log.Duplicates = 2 * time.Minute

	declarations := base(events.StreamDeclarations, o)
	declarations.Sources = []*jetstream.StreamSource{{
		Name: events.StreamEvents,
		SubjectTransforms: []jetstream.SubjectTransformConfig{{
			Source:      events.EventSubject(events.AggregateDeclaration, "*"),
			Destination: events.DeclaredSubject("{{wildcard(1)}}"),
		}},
	}}
	declarations.MaxMsgsPerSubject = 1
	declarations.AllowDirect = true
	declarations.RePublish = &jetstream.RePublish{
		Source:      events.DeclaredSubject("*"),
		Destination: events.DeclarationSubject("{{wildcard(1)}}"),
	}
	declarations.DenyDelete, declarations.DenyPurge = true, true

	heartbeats := base(events.StreamHeartbeats, o)
	heartbeats.Subjects = []string{events.HeartbeatSubject("*")}
	heartbeats.MaxAge = o.HeartbeatAge
	heartbeats.MaxMsgsPerSubject = 1000
	heartbeats.MaxMsgSize = events.MaxHeartbeat + headerRoom
	heartbeats.DenyDelete, heartbeats.DenyPurge = true, true
	heartbeats.Duplicates = dedupWindow
	heartbeats.FirstSeq = o.HeartbeatsFrom
	if o.Replicas == 1 { // the broker offers it for single copies only
		heartbeats.PersistMode = jetstream.AsyncPersistMode
	}

	reports := base(events.StreamReports, o)
	reports.Subjects = []string{events.ReportSubject("*", "*")}
	reports.MaxAge = 7 * 24 * time.Hour
	reports.MaxBytes = 1 << 30
	reports.MaxMsgsPerSubject = 256 // a flood of one node pushes out only its own
	reports.MaxMsgSize = events.MaxReport + headerRoom
	reports.DenyDelete, reports.DenyPurge = true, true
	reports.Duplicates = dedupWindow
	reports.FirstSeq = o.ReportsFrom

	// An object store as the client library makes it.
	packages := base(events.StreamPackages, o)
	packages.Subjects = []string{"$O." + events.BucketPackages + ".C.>", "$O." + events.BucketPackages + ".M.>"}
	packages.Discard = jetstream.DiscardNew
	packages.AllowRollup = true
	packages.AllowDirect = true
	packages.Duplicates = 2 * time.Minute

	all := []jetstream.StreamConfig{log, declarations, heartbeats, reports, packages}
	for _, bucket := range projections.Buckets {
		all = append(all, bucketConfig(bucket, o))
	}
	return all
}

// bucketConfig is a key-value bucket as the client library makes it. It is
// written through to the disk: what a watcher has seen must still be there under
// its number after a crash, or it would take what comes later for what it has.
func bucketConfig(bucket string, o StreamOptions) jetstream.StreamConfig {
	c := base(projections.BucketStream(bucket), o)
	c.Subjects = []string{projections.KeySubject(bucket, ">")}
	c.MaxMsgsPerSubject = 1
	c.Discard = jetstream.DiscardNew
	c.AllowRollup = true
	c.AllowDirect = true
	c.DenyDelete = true
	c.Duplicates = 2 * time.Minute
	return c
}

// base has the values that mean "no limit" as the broker writes them.
func base(name string, o StreamOptions) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              name,
		Retention:         jetstream.LimitsPolicy,
		Storage:           jetstream.FileStorage,
		Discard:           jetstream.DiscardOld,
		Replicas:          o.Replicas,
		MaxConsumers:      -1,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        -1,
	}
}

// answerTimeout bounds the wait for JetStream right after the broker's start.
const answerTimeout = 10 * time.Second

// jetstreamAnswers waits until the account's JetStream answers. The broker says
// that it is ready a moment before that is so.
func jetstreamAnswers(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for {
		_, err := js.AccountInfo(ctx)
		if err == nil || !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("JetStream did not answer within %s of the broker's start: %w", answerTimeout, err)
		}
	}
}

// EnsureStreams creates the streams that are not there and checks those that
// are. It changes none but the log of version 0.1, which gets the subjects that
// came later: a stream that is not what it must be is an error that lists what
// differs, for each such stream.
func EnsureStreams(ctx context.Context, js jetstream.JetStream, opts StreamOptions) error {
	opts, err := opts.withDefaults()
	if err != nil {
		return err
	}
	if err := jetstreamAnswers(ctx, js); err != nil {
		return err
	}
	wanted := streamConfigs(opts)
	have := make(map[string]jetstream.StreamConfig)
	for _, want := range wanted {
		s, err := js.Stream(ctx, want.Name)
		switch {
		case err == nil:
			have[want.Name] = s.CachedInfo().Config
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return fmt.Errorf("looking at stream %s: %w", want.Name, err)
		}
	}
	if _, ok := have[events.StreamEvents]; !ok && len(have) > 0 {
		return fmt.Errorf("the log, stream %s, is gone while other streams are there: restore the data directory from a backup, or start with an empty one", events.StreamEvents)
	}
	var wrong []error
	for _, want := range wanted {
		if got, ok := have[want.Name]; ok {
			if of01(want, got) {
				got.Subjects = want.Subjects
				if _, err := js.UpdateStream(ctx, got); err != nil {
					return fmt.Errorf("adding subjects to stream %s: %w", want.Name, err)
				}
			}
			if diffs := configDiffs(want, got); len(diffs) > 0 {
				wrong = append(wrong, fmt.Errorf("stream %s is not what it must be: %s", want.Name, strings.Join(diffs, "; ")))
			}
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w\nnothing was changed: find out who changed it; then put it back with `nats stream edit`, or start on another data directory", errors.Join(wrong...))
	}
	for _, want := range wanted {
		if _, ok := have[want.Name]; ok {
			continue
		}
		s, err := js.CreateStream(ctx, want)
		if err != nil {
			return fmt.Errorf("creating stream %s: %w", want.Name, err)
		}
		// A broker that is too old leaves out what it does not know.
		if diffs := configDiffs(want, s.CachedInfo().Config); len(diffs) > 0 {
			return fmt.Errorf("the broker made stream %s differently: %s: it needs to be nats-server 2.15.3 or newer", want.Name, strings.Join(diffs, "; "))
		}
	}
	return nil
}

// of01 says whether a stream is the log as version 0.1 made it, before there were
// users and keys in it.
func of01(want, have jetstream.StreamConfig) bool {
	const subjects = 4
	if want.Name != events.StreamEvents || !slices.Equal(have.Subjects, want.Subjects[:subjects]) {
		return false
	}
	have.Subjects = want.Subjects
	return len(configDiffs(want, have)) == 0
}

// unchecked are fields that change nothing about what a stream keeps or who
// can change it.
var unchecked = map[string]bool{"Description": true, "Metadata": true, "Placement": true, "Template": true, "FirstSeq": true}

// configDiffs names each field that differs, as the broker spells it.
func configDiffs(want, have jetstream.StreamConfig) []string {
	var diffs []string
	w, h := reflect.ValueOf(want), reflect.ValueOf(have)
	for _, f := range reflect.VisibleFields(w.Type()) {
		if unchecked[f.Name] {
			continue
		}
		a, b := fieldText(w.FieldByIndex(f.Index)), fieldText(h.FieldByIndex(f.Index))
		if a != b {
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			diffs = append(diffs, fmt.Sprintf("%s must be %s and is %s", key, a, b))
		}
	}
	return diffs
}

func fieldText(v reflect.Value) string {
	if d, ok := v.Interface().(time.Duration); ok {
		return d.String()
	}
	if v.Kind() == reflect.Slice && v.Len() == 0 {
		return "none"
	}
	raw, err := json.Marshal(v.Interface())
	if err != nil {
		return fmt.Sprint(v.Interface())
	}
	if string(raw) == "null" {
		return "none"
	}
	return string(raw)
}
