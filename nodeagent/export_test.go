package nodeagent

// HaltAfter makes an agent end at a step, as a power cut would.
func (c *Config) HaltAfter(f func(step string) error) { c.afterStep = f }

// ErrHalted is what such an agent ends with.
var ErrHalted = errHalted
