package projections_test

import (
	"flag"
	"testing"

	"noxmesh/events/schematest"
	"noxmesh/projections"
)

var rewrite = flag.Bool("rewrite", false, "write the schemas in docs/schemas anew")

// TestSchemas: tools have a schema of what each bucket holds. That the buckets
// hold it is tested where they are written.
func TestSchemas(t *testing.T) {
	for bucket, view := range map[string]any{
		projections.BucketFleet:    projections.NodeView{},
		projections.BucketRollouts: projections.RolloutView{},
		projections.BucketReleases: projections.ReleaseView{},
	} {
		s := schematest.With(schematest.Of(t, projections.Entry{}), "value", schematest.Of(t, view))
		schematest.Golden(t, bucket+".json", s, *rewrite)
	}
}
