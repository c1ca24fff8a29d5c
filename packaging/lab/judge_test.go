package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// How a scenario may end, as seen from outside of the host.
const (
	isNew    = "new"    // runs the version that was asked for, confirmed
	isFormer = "former" // runs the version from before, confirmed, and the mesh was told why
	isFailed = "failed" // the unit is failed, and the journal names the cause
	isNone   = "none of the three"
)

// view is what one look at a machine finds.
type view struct {
	props     map[string]string // of the host's unit
	rollback  string            // state of the rollback's unit
	version   string            // installed, for dpkg
	dpkg      string            // want, error, status; "install ok installed" when all is well
	runs      bool              // the process is the installed file
	knownGood string
	pending   bool // a rollback is not settled
}

// look asks systemd, dpkg, the kernel and the disk; not the host.
func (s *site) look(ctx context.Context) (view, error) {
	out, err := s.sh(ctx, `systemctl show -p LoadState,ActiveState,Result,NRestarts,MainPID `+hostUnit+`
		systemctl show -p ActiveState `+rollbackUnit+` | sed s/^/rollback/
		dpkg-query -W -f 'version=${Version}\ndpkg=${Status}\n' nox-mesh-host
		pid=$(systemctl show --value -p MainPID `+hostUnit+`)
		exe=/proc/$pid/exe bin=`+hostBinary+`
		if [ "$pid" != 0 ] && { [ $exe -ef $bin ] || cmp -s $exe $bin; }; then echo runs=yes; fi
		[ ! -e `+stateDir+`/rollback ] || echo pending=yes
		[ ! -e `+stateDir+`/known-good ] || echo "known=$(head -n 1 `+stateDir+`/known-good | tr -dc '[:print:]')"`)
	if err != nil {
		return view{}, err
	}
	props := map[string]string{}
	for line := range strings.Lines(out) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		props[k] = v
	}
	return view{props: props, rollback: props["rollbackActiveState"], version: props["version"], dpkg: props["dpkg"],
		runs: props["runs"] == "yes", knownGood: props["known"], pending: props["pending"] == "yes"}, nil
}

// judge says which of the three states the machine is in, or what is missing
// for one. A machine that gets into two at once is in none.
func (s *site) judge(ctx context.Context) (string, view, error) {
	v, err := s.look(ctx)
	if err != nil {
		return isNone, v, err
	}
	no := func(format string, args ...any) (string, view, error) {
		return isNone, v, fmt.Errorf("%s (unit %s, dpkg %s of %s, known-good %q)", fmt.Sprintf(format, args...),
			v.props["ActiveState"], v.dpkg, v.version, v.knownGood)
	}
	switch {
	case !properly(v.dpkg):
		return no("half-installed")
	case v.rollback == "active" || v.rollback == "activating":
		return no("the rollback is at work")
	case v.props["ActiveState"] == "failed":
		lines, err := s.causes(ctx)
		if err != nil {
			return isNone, v, err
		}
		if len(lines) == 0 {
			return no("failed, and no line of the journal says %q", s.cause)
		}
		return isFailed, v, nil
	case v.props["ActiveState"] != "active":
		return no("the unit is %s", v.props["ActiveState"])
	case !v.runs:
		return no("what runs is not what is installed")
	case v.knownGood != v.version || v.pending:
		return no("it runs and is not confirmed")
	case s.diary.confirmations(s.name, v.version) == 0:
		return no("the mesh was not told that %s is confirmed", v.version)
	case v.version == s.target:
		return isNew, v, nil
	case v.version != s.former:
		return no("neither on %s nor on %s", s.target, s.former)
	}
	if s.diary.rollbacks(s.name, s.target) == 0 && s.diary.notInstalled(s.name, s.target) == "" {
		return no("on %s, and the mesh was not told why not on %s", s.former, s.target)
	}
	return isFormer, v, nil
}

// properly: neither half-installed nor half-configured; a hold is no matter.
func properly(dpkg string) bool { return dpkg == "install ok installed" || dpkg == "hold ok installed" }

// causes are the lines of the journal that name the cause.
func (s *site) causes(ctx context.Context) ([]string, error) {
	if s.cause == "" {
		return nil, errors.New("the unit is failed, and nothing in this scenario should make it so")
	}
	cause, err := regexp.Compile(s.cause)
	if err != nil {
		return nil, err
	}
	journal, err := s.Journal(ctx, rollbackUnit, "-o", "cat")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(strings.Split(journal, "\n"), func(line string) bool { return !cause.MatchString(line) }), nil
}

// How long a machine must stay as it is. One that failed is given time in which
// the rescue timer, which looks every 20 s, could set it in motion again.
const (
	steadyRunning = 8 * time.Second
	steadyFailed  = 45 * time.Second
)

// end waits until the machine is in one of the states that are right for the
// scenario, and then that it stays there: same process, no restarts, nothing
// said twice.
func (s *site) end(ctx context.Context, within time.Duration, right ...string) (string, error) {
	var was string
	var before view
	tick := time.NewTicker(700 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(within)
	for over := false; !slices.Contains(right, was); {
		var err error
		was, before, err = s.judge(ctx)
		if slices.Contains(right, was) {
			break
		}
		if over {
			if err == nil {
				err = fmt.Errorf("that is not right here: %s", strings.Join(right, " or "))
			}
			return was, fmt.Errorf("after %s it is %s: %w", within, was, err)
		}
		select {
		case <-tick.C:
		case <-deadline:
			over = true
		case <-ctx.Done():
			return was, context.Cause(ctx)
		}
	}
	if s.ended.IsZero() { // a check may go on from here
		s.ended = time.Now()
	}
	return was, s.steady(ctx, was, before)
}

func (s *site) steady(ctx context.Context, was string, before view) error {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	long := steadyRunning
	if was == isFailed {
		long = steadyFailed
	}
	causes, rollbacks := 0, s.diary.rollbacks(s.name, s.target)
	if was == isFailed {
		lines, err := s.causes(ctx)
		if err != nil {
			return err
		}
		causes = len(lines)
	}
	for end := time.After(long); ; {
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end:
		}
		break
	}
	now, after, err := s.judge(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%s after it was %s it is %s: %w", long, was, now, err)
	case now != was || after.props["MainPID"] != before.props["MainPID"] || after.props["NRestarts"] != before.props["NRestarts"]:
		return fmt.Errorf("not steady: %s after it was %s with process %s and %s restarts, it is %s with %s and %s", long,
			was, before.props["MainPID"], before.props["NRestarts"], now, after.props["MainPID"], after.props["NRestarts"])
	case s.diary.rollbacks(s.name, s.target) > max(1, rollbacks):
		return fmt.Errorf("%d rollbacks from %s were reported", s.diary.rollbacks(s.name, s.target), s.target)
	}
	if was == isFailed {
		// One further try is the rescue timer's, which waits ten minutes after it.
		lines, err := s.causes(ctx)
		if err != nil || len(lines) > causes+1 {
			return errors.Join(err, fmt.Errorf("the rollback goes on and on: its journal said why %d times, and %d times after %s", causes, len(lines), long))
		}
	}
	return nil
}

// Message ids in systemd's catalogue, which are the same in all its versions.
const (
	unitFailed    = "d9b373ed55a64feb8242e02dbe79a49c"
	unitSucceeded = "7ad2d189f7e94e70a38c781354912448"
)

// recoverySeconds is the time from the first end of a process of the last
// version that was installed to a start of the former one that got through a
// reconcile, which is when it tells that it is ready. False if the journal has
// no such two moments.
func (s *site) recoverySeconds(ctx context.Context) (float64, bool, error) {
	journal, err := s.Journal(ctx, hostUnit, "--output=json")
	if err != nil {
		return 0, false, err
	}
	var crashed, back time.Time
	left, exited, started := false, false, false
	for line := range strings.Lines(journal) {
		var e struct {
			ID      string `json:"MESSAGE_ID"`
			Stamp   string `json:"__REALTIME_TIMESTAMP"`
			Message any    `json:"MESSAGE"` // a list of bytes when it is not printable
			Status  string `json:"EXIT_STATUS"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return 0, false, err
		}
		us, err := strconv.ParseInt(e.Stamp, 10, 64)
		if err != nil {
			return 0, false, err
		}
		message, _ := e.Message.(string)
		switch at := time.UnixMicro(us); {
		case strings.Contains(message, `"installed: exiting`) && strings.Contains(message, `"version":"`+s.target+`"`):
			left, exited, started, crashed, back = true, false, false, time.Time{}, time.Time{}
		case !left:
		case !exited: // the former version ends by itself
			exited = e.ID == unitSucceeded
		case crashed.IsZero() && (e.ID == unitFailed || e.ID == unitSucceeded || e.ID == processExited && e.Status != "0"):
			crashed = at
		case !crashed.IsZero() && back.IsZero() && strings.Contains(message, `"host starts"`) && strings.Contains(message, `"version":"`+s.former+`"`):
			started = true
		case started && back.IsZero() && e.ID == unitStarted:
			back = at
		}
	}
	return back.Sub(crashed).Seconds(), !crashed.IsZero() && !back.IsZero(), nil
}
