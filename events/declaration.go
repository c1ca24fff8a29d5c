package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
)

// CauseKind is why a node got a declaration.
type CauseKind string

const (
	CauseBatch    CauseKind = "rollout-batch"
	CauseRecall   CauseKind = "recall"
	CauseRevert   CauseKind = "revert"
	CauseOperator CauseKind = "operator"
)

// DeclarationCause is where a declaration comes from.
type DeclarationCause struct {
	Kind    CauseKind `json:"kind"`
	Rollout string    `json:"rollout,omitempty"`
	Batch   int       `json:"batch,omitempty"`
}

// Declared is what one node should be. Only the newest revision counts.
type Declared struct {
	Node string `json:"node"`
	// Revision counts a node's declarations from 1.
	Revision  uint64           `json:"revision"`
	Because   DeclarationCause `json:"because"`
	Resources []Resource       `json:"resources"` // applied in this order
	// AsOf is how far the stager had read that declared it.
	AsOf Position `json:"as_of,omitzero"`
	// Rotations lead from keys that a node may have pinned to the ones that
	// sign today, the oldest first.
	Rotations []Rotation `json:"rotations,omitempty"`
	// Signature is by the delivery key, over [DeclarationText].
	Signature string `json:"signature,omitempty"`
}

func (*Declared) EventType() string { return "mesh.declaration.declared.v1" }
func (*Declared) aggregate() string { return AggregateDeclaration }

// DeclarationID is the id of the declaration that follows from an intent.
func DeclarationID(c DeclarationCause, node string) string {
	return DerivedID(string(c.Kind), c.Rollout, fmt.Sprint(c.Batch), node)
}

// Host gives the host resource, or nil if the declaration has none.
func (d *Declared) Host() *HostSpec {
	for _, r := range d.Resources {
		if r.Type != ResourceHost {
			continue
		}
		var spec HostSpec
		if json.Unmarshal(r.Spec, &spec) == nil {
			return &spec
		}
	}
	return nil
}

// Resource types.
const (
	ResourceHost = "host"
	ResourceFile = "file"
)

// Resource is one thing a node should have. Spec belongs to the type.
type Resource struct {
	Type string          `json:"type"`
	Name string          `json:"name"`
	Spec json.RawMessage `json:"spec"`
}

// String is how reports and people name a resource.
func (r Resource) String() string { return r.Type + "/" + r.Name }

// HostSpec is the spec of the host resource: the version of the host itself.
type HostSpec struct {
	Release
	// Fallback is the package of the version the node runs now, so that a node
	// that was installed by hand can retain it before it upgrades.
	Fallback *Release `json:"fallback,omitempty"`
	// Retry lifts the node's refusal of a version it rolled back from.
	Retry bool `json:"retry,omitempty"`
}

// Validate checks a host resource's spec.
func (s HostSpec) Validate() error {
	if err := s.Release.Validate(); err != nil {
		return err
	}
	if s.Fallback != nil {
		if err := s.Fallback.Validate(); err != nil {
			return fmt.Errorf("fallback: %w", err)
		}
	}
	return nil
}

// FileSpec is the spec of a file resource; the resource's name is the path.
type FileSpec struct {
	Mode    string `json:"mode"`            // octal, like "0644"
	Owner   string `json:"owner,omitempty"` // user or user:group; root:root if empty
	Content string `json:"content"`
}

var fileMode = regexp.MustCompile(`^0?[0-7]{3}$`)

// Validate checks a file resource's spec against its path.
func (s FileSpec) Validate(name string) error {
	if !path.IsAbs(name) || path.Clean(name) != name || name == "/" {
		return fmt.Errorf("%q is no clean absolute path", name)
	}
	if !fileMode.MatchString(s.Mode) {
		return fmt.Errorf("mode %q is not octal like \"0644\"", s.Mode)
	}
	return nil
}

// ResourceFromSpec makes a resource of one of the spec types.
func ResourceFromSpec(typ, name string, spec any) Resource {
	raw, err := json.Marshal(spec)
	if err != nil {
		panic(fmt.Sprintf("events: %T does not marshal: %v", spec, err))
	}
	return Resource{Type: typ, Name: name, Spec: raw}
}

// DecodeSpec reads a resource's spec strictly. A field that this program does
// not know may change what the resource means, so it is refused rather than
// ignored: the resource is not applied, and the reason is reported.
func DecodeSpec(r Resource, into any) error {
	dec := json.NewDecoder(bytes.NewReader(r.Spec))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%s: spec does not read: %w", r, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: spec has something behind its end", r)
	}
	return nil
}

var (
	versionForm = regexp.MustCompile(`^[0-9][A-Za-z0-9.+~:-]{0,127}$`)
	archForm    = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	sha256Form  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// CheckVersion refuses what is no Debian version.
func CheckVersion(v string) error {
	if !versionForm.MatchString(v) {
		return fmt.Errorf("%q is no package version: use a digit, then letters, digits and . + ~ : -", v)
	}
	return nil
}

// Validate checks a release's form, not that its package exists.
func (r Release) Validate() error {
	if err := CheckVersion(r.Version); err != nil {
		return err
	}
	switch {
	case !archForm.MatchString(r.Architecture):
		return fmt.Errorf("%q is no architecture", r.Architecture)
	case !sha256Form.MatchString(r.SHA256):
		return fmt.Errorf("%q is no sha256 in lower-case hex", r.SHA256)
	case r.Size <= 0:
		return fmt.Errorf("size %d is not positive", r.Size)
	}
	return nil
}

// PackageFile is the file name of a release's package, as apt would name it.
func PackageFile(version, architecture string) string {
	return HostPackage + "_" + strings.ReplaceAll(version, ":", "%3a") + "_" + architecture + ".deb"
}

// HostPackage is the name of the Debian package of the host.
const HostPackage = "nox-mesh-host"

// Key of the release in subjects.
func (r Release) Key() string { return ReleaseKey(r.Version, r.Architecture) }

// PackagePart names one part of a package in the object store. Packages are
// kept in parts of at most [PackagePartSize] bytes, each of them one object of
// one chunk, so that a node reads them with Direct Gets and needs no consumer.
func PackagePart(sha256 string, part int) string { return fmt.Sprintf("%s.%d", sha256, part) }

// PackagePartSize is the size of each part of a package but the last, in bytes.
const PackagePartSize = 512 << 10
