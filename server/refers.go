package server

import (
	"encoding/json"
	"reflect"
	"time"

	"noxmesh/events"
)

// references are the highest sequences of HEARTBEATS and REPORTS that events refer
// to. Streams that are made anew go on behind them: a sequence means one message.
type references struct{ heartbeat, report uint64 }

// of looks into one event. A type that this program does not know is passed over.
func (r *references) of(e events.Event) {
	if fact, err := e.Fact(); err == nil {
		r.walk(reflect.ValueOf(fact))
	}
}

func (r *references) walk(v reflect.Value) {
	if !v.IsValid() {
		return
	}
	switch x := v.Interface().(type) {
	case events.Position:
		r.heartbeats(x.Heartbeat)
		return
	case events.Evidence:
		r.heartbeats(x.Heartbeats...)
		return
	case events.BatchOpened:
		r.heartbeats(x.Presence...)
	case events.Receipt:
		r.report = max(r.report, x.ReportSeq)
		return
	case time.Time, json.RawMessage:
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		r.walk(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				r.walk(v.Field(i))
			}
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k == reflect.Struct || k == reflect.Pointer {
			for i := range v.Len() {
				r.walk(v.Index(i))
			}
		}
	}
}

func (r *references) heartbeats(seqs ...uint64) {
	for _, seq := range seqs {
		r.heartbeat = max(r.heartbeat, seq)
	}
}
