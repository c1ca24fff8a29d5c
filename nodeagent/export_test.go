package nodeagent

// HaltAfter makes an agent end at a step, as a power cut would.
func (c *Config) HaltAfter(f func(step string) error) { c.afterStep = f }

// ErrHalted is what such an agent ends with.
var ErrHalted = errHalted

// CutAfter makes a join end at a step, as a power cut would.
func (c *JoinConfig) CutAfter(f func(step string) error) { c.afterStep = f }
