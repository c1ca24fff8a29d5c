package server

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"pault.ag/go/debian/control"
	"pault.ag/go/debian/deb"

	"noxmesh/events"
)

// Bounds on what is read of a package, in bytes, so that a hostile one costs
// neither memory nor an endless read.
const (
	maxPackage  = 1 << 30  // the file
	maxUnpacked = 4 << 30  // each of its tar archives
	maxControl  = 1 << 20  // the control file
	maxWindow   = 64 << 20 // of a decompressor
)

// ReadDeb reads a Debian package file and gives the release that it is. All of
// the file is read: one that is cut off, or whose content does not read to its
// end, is refused here and not on the nodes. The error says what to do.
func ReadDeb(path string) (events.Release, error) {
	f, err := os.Open(path)
	if err != nil {
		return events.Release{}, fmt.Errorf("opening the package: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return events.Release{}, fmt.Errorf("opening the package: %w", err)
	}
	if !info.Mode().IsRegular() {
		return events.Release{}, fmt.Errorf("%s is no file: give the path of a .deb file", path)
	}
	r, err := readDeb(f, info.Size())
	if err != nil {
		return events.Release{}, fmt.Errorf("%s %w", path, err)
	}
	return r, nil
}

// readDeb gives errors that go on from the file's name.
func readDeb(in io.ReaderAt, size int64) (r events.Release, err error) {
	// The readers of control files and of xz are libraries that were not made
	// for hostile input. A panic of theirs is one more way of not being a package.
	defer func() {
		if p := recover(); p != nil {
			r, err = events.Release{}, fmt.Errorf("cannot be read as a Debian package (the reader gave up: %v): build it again", p)
		}
	}()
	if size > maxPackage {
		return events.Release{}, fmt.Errorf("is larger than %d bytes, the most a package of the host may have", int64(maxPackage))
	}
	members, err := arMembers(in, size)
	if err != nil {
		return events.Release{}, err
	}
	ctl, err := members.control()
	if err != nil {
		return events.Release{}, fmt.Errorf("cannot be read as a Debian package: %s: %w: build it again", members.ctl.name, err)
	}
	if err := members.data.toEnd(); err != nil {
		return events.Release{}, fmt.Errorf("is damaged: %s: %w: copy or build it again", members.data.name, err)
	}
	r, err = releaseOf(ctl)
	if err != nil {
		return events.Release{}, err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(in, 0, size)); err != nil {
		return events.Release{}, fmt.Errorf("cannot be read: %w", err)
	}
	r.Size, r.SHA256 = size, hex.EncodeToString(sum.Sum(nil))
	return r, r.Validate()
}

func releaseOf(c deb.Control) (events.Release, error) {
	if c.Package != events.HostPackage {
		return events.Release{}, fmt.Errorf("is package %q and not %s: only the host's own package can be a release", events.Printable(c.Package, 80), events.HostPackage)
	}
	// As written: the parsed version may spell it differently from dpkg.
	v, arch := c.Values["Version"], c.Values["Architecture"]
	if err := events.CheckVersion(v); err != nil {
		return events.Release{}, fmt.Errorf("has no usable version: %w: build it with another", err)
	}
	if arch == "all" || arch == "any" || strings.ContainsAny(arch, " _./") {
		return events.Release{}, fmt.Errorf("has architecture %q: nodes install packages of their own architecture, like amd64: build it for one", events.Printable(arch, 40))
	}
	return events.Release{Version: v, Architecture: arch, File: events.PackageFile(v, arch)}, nil
}

// debMembers are the two archives in a package, see deb(5).
type debMembers struct {
	ctl, data member
}

type member struct {
	name string
	data *io.SectionReader
}

const (
	arMagic  = "!<arch>\n"
	arHeader = 60
)

// arMembers walks the outer archive. The library's walk takes a header that is
// cut off for the end and follows negative sizes backwards, so this is its own.
func arMembers(in io.ReaderAt, size int64) (debMembers, error) {
	var found debMembers
	notPackage := func(why string) (debMembers, error) {
		return found, fmt.Errorf("is no Debian package: %s: give a .deb file", why)
	}
	cutOff := func(at int64) (debMembers, error) {
		return found, fmt.Errorf("is cut off: it has %d bytes and should have %d or more: copy or build it again", size, at)
	}
	magic := make([]byte, len(arMagic))
	if n, _ := in.ReadAt(magic, 0); n < len(magic) || string(magic) != arMagic {
		return notPackage("it does not begin as one")
	}
	var names []string
	for at := int64(len(arMagic)); at < size; {
		if size-at < arHeader {
			return cutOff(at + arHeader)
		}
		head := make([]byte, arHeader)
		if _, err := in.ReadAt(head, at); err != nil {
			return found, fmt.Errorf("cannot be read: %w", err)
		}
		length, err := strconv.ParseUint(strings.TrimSpace(string(head[48:58])), 10, 40)
		if err != nil || string(head[58:60]) != "`\n" {
			return notPackage(fmt.Sprintf("at byte %d there is no archive member", at))
		}
		name := strings.TrimSuffix(strings.TrimRight(string(head[:16]), " "), "/")
		at += arHeader
		if int64(length) > size-at {
			return cutOff(at + int64(length))
		}
		m := member{name: events.Printable(name, 16), data: io.NewSectionReader(in, at, int64(length))}
		at += int64(length) + int64(length%2)
		if strings.HasPrefix(name, "_") { // others' signatures: allowed, not ours to read
			continue
		}
		switch {
		case len(names) == 0 && name == "debian-binary":
			format := make([]byte, 4)
			if n, _ := m.data.ReadAt(format, 0); n < 4 || string(format[:2]) != "2." {
				return notPackage("its format version is not 2")
			}
		case len(names) == 1 && strings.HasPrefix(name, "control.tar"):
			found.ctl = m
		case len(names) == 2 && strings.HasPrefix(name, "data.tar"):
			found.data = m
		default:
			return notPackage(fmt.Sprintf("member %q is out of place", m.name))
		}
		names = append(names, name)
	}
	if len(names) < 3 {
		return found, fmt.Errorf("is cut off, or no Debian package: it should hold debian-binary, control.tar and data.tar and ends after %d of them: copy or build it again", len(names))
	}
	return found, nil
}

// control reads the control file out of control.tar.
func (m debMembers) control() (deb.Control, error) {
	var c deb.Control
	var text []byte
	err := m.ctl.each(func(h *tar.Header, r io.Reader) error {
		if path.Clean(h.Name) != "control" || h.Typeflag != tar.TypeReg {
			return nil
		}
		if h.Size > maxControl {
			return fmt.Errorf("its control file is larger than %d bytes", maxControl)
		}
		var err error
		text, err = io.ReadAll(io.LimitReader(r, maxControl))
		return err
	})
	if err != nil {
		return c, err
	}
	if text == nil {
		return c, errors.New("it has no control file")
	}
	if err := control.Unmarshal(&c, bytes.NewReader(text)); err != nil {
		return c, fmt.Errorf("its control file does not read: %s", events.Printable(err.Error(), 200))
	}
	return c, nil
}

func (m member) toEnd() error {
	return m.each(func(*tar.Header, io.Reader) error { return nil })
}

// each hands over the files of a compressed tar archive, and then reads what is
// left, so that the compression's checksums are checked.
func (m member) each(fn func(*tar.Header, io.Reader) error) error {
	plain, err := m.decompress()
	if err != nil {
		return err
	}
	defer plain.Close()
	limited := &io.LimitedReader{R: plain, N: maxUnpacked}
	files := tar.NewReader(limited)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = fn(h, files)
		}
		if err != nil {
			return m.trouble(err, limited)
		}
	}
	_, err = io.Copy(io.Discard, limited)
	return m.trouble(err, limited)
}

func (m member) trouble(err error, limited *io.LimitedReader) error {
	if limited.N <= 0 {
		return fmt.Errorf("it unpacks to more than %d bytes", int64(maxUnpacked))
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends before it is complete")
	}
	return err
}

// decompress knows what dpkg-deb of today writes. The others' readers take
// their memory use from the file.
func (m member) decompress() (io.ReadCloser, error) {
	switch ext := path.Ext(m.name); ext {
	case ".tar":
		return io.NopCloser(m.data), nil
	case ".gz":
		return gzip.NewReader(m.data)
	case ".xz":
		return deb.DecompressorFor(ext)(m.data) // bounded to a window of 64 MiB
	case ".zst":
		z, err := zstd.NewReader(m.data, zstd.WithDecoderConcurrency(1), // in this goroutine, where a panic is caught
			zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxUnpacked))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	default:
		return nil, fmt.Errorf("compression %q is not supported: build it with dpkg-deb's xz, zstd, gzip or none", ext)
	}
}
