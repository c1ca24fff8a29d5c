package events

import (
	"maps"
	"slices"
)

// Types are all event types that this program knows, in order.
func Types() []string { return slices.Sorted(maps.Keys(factTypes)) }
