package projections

// Version is that of the projections: of what the folds make of the log and of
// the views that people and tools get. It rises when the same log leads to other
// values than before; what was folded by another version is then folded anew.
const Version = 1
