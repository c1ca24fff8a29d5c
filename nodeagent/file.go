package nodeagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path"
	"strconv"
	"strings"
	"syscall"

	"noxmesh/events"
)

// fileHandler makes files. It writes through no symbolic link that somebody
// other than root made: the host is root, and a link in a user's directory
// could otherwise aim it at any file of the machine.
type fileHandler struct{}

func (fileHandler) Apply(_ context.Context, r events.Resource) error {
	var spec events.FileSpec
	if err := events.DecodeSpec(r, &spec); err != nil {
		return err
	}
	if err := spec.Validate(r.Name); err != nil {
		return err
	}
	mode, err := strconv.ParseUint(spec.Mode, 8, 32)
	if err != nil {
		return fmt.Errorf("mode %q: %w", spec.Mode, err)
	}
	uid, gid, err := lookupOwner(spec.Owner)
	if err != nil {
		return err
	}
	dir, err := openParent(path.Dir(r.Name))
	if err != nil {
		return err
	}
	defer dir.Close()
	return putFile(dir, path.Base(r.Name), []byte(spec.Content), os.FileMode(mode), uid, gid)
}

// lookupOwner reads user or user:group, by name or by number. A user alone
// brings the own group along.
func lookupOwner(owner string) (uid, gid int, err error) {
	if owner == "" {
		return 0, 0, nil
	}
	name, group, hasGroup := strings.Cut(owner, ":")
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return 0, 0, fmt.Errorf("owner %q: there is no such user on this machine", owner)
		}
	}
	gidText := u.Gid
	if hasGroup {
		g, err := user.LookupGroup(group)
		if err != nil {
			if g, err = user.LookupGroupId(group); err != nil {
				return 0, 0, fmt.Errorf("owner %q: there is no such group on this machine", owner)
			}
		}
		gidText = g.Gid
	}
	if uid, err = strconv.Atoi(u.Uid); err != nil {
		return 0, 0, fmt.Errorf("owner %q: %w", owner, err)
	}
	if gid, err = strconv.Atoi(gidText); err != nil {
		return 0, 0, fmt.Errorf("owner %q: %w", owner, err)
	}
	return uid, gid, nil
}

// openParent opens a directory step by step, making what is missing with mode
// 0755, and follows only links that root or this process's user made.
func openParent(dir string) (*os.Root, error) {
	root, err := os.OpenRoot("/")
	if err != nil {
		return nil, err
	}
	left := strings.Split(strings.Trim(dir, "/"), "/")
	at := "/"
	for links := 0; len(left) > 0; {
		name := left[0]
		left = left[1:]
		if name == "" || name == "." {
			continue
		}
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			if err = root.Mkdir(name, 0o755); err == nil || errors.Is(err, fs.ErrExist) {
				info, err = root.Lstat(name)
			}
		}
		if err != nil {
			root.Close()
			return nil, fmt.Errorf("directory %s: %w", path.Join(at, name), err)
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			target, err := root.Readlink(name)
			if links++; err == nil && (links > 40 || !ours(info)) {
				err = errors.New("is a symbolic link that root did not make: not followed")
			}
			if err != nil {
				root.Close()
				return nil, fmt.Errorf("directory %s: %w", path.Join(at, name), err)
			}
			// Start anew from / with the target in the link's place.
			if !path.IsAbs(target) {
				target = path.Join(at, target)
			}
			left = append(strings.Split(strings.Trim(path.Clean(target), "/"), "/"), left...)
			root.Close()
			if root, err = os.OpenRoot("/"); err != nil {
				return nil, err
			}
			at = "/"
			continue
		}
		next, err := root.OpenRoot(name)
		root.Close()
		if err != nil {
			return nil, fmt.Errorf("directory %s: %w", path.Join(at, name), err)
		}
		// Somebody may have put a link there since it was looked at.
		if opened, err := next.Stat("."); err != nil || !os.SameFile(info, opened) {
			next.Close()
			return nil, fmt.Errorf("directory %s changed while it was opened", path.Join(at, name))
		}
		root, at = next, path.Join(at, name)
	}
	return root, nil
}

func ours(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && (st.Uid == 0 || int(st.Uid) == os.Geteuid())
}

// putFile makes one file so, or does nothing when it is.
func putFile(dir *os.Root, name string, content []byte, mode os.FileMode, uid, gid int) error {
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link: remove it, or declare the file that it points to", name)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is there and is no regular file: remove it", name)
	default:
		if same, err := isFile(dir, name, info, content, mode, uid, gid); err != nil || same {
			return err
		}
	}
	// The name is always the same, so that what a stop left behind is
	// overwritten by the next try.
	tmp := "." + name + ".nox-mesh-new"
	if err := dir.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := dir.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = fillFile(f, content, mode, uid, gid)
	if err = errors.Join(err, f.Close()); err == nil {
		err = dir.Rename(tmp, name)
	}
	if err != nil {
		return errors.Join(err, dir.Remove(tmp))
	}
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func fillFile(f *os.File, content []byte, mode os.FileMode, uid, gid int) error {
	if _, err := f.Write(content); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != uid || int(st.Gid) != gid {
		if err := f.Chown(uid, gid); err != nil {
			return err
		}
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	return f.Sync()
}

func isFile(dir *os.Root, name string, info fs.FileInfo, content []byte, mode os.FileMode, uid, gid int) (bool, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) != uid || int(st.Gid) != gid || info.Mode() != mode || info.Size() != int64(len(content)) {
		return false, nil
	}
	f, err := dir.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	have, err := io.ReadAll(io.LimitReader(f, int64(len(content))+1))
	return bytes.Equal(have, content), err
}
